// MemberDecays: what an Optimizer may be too: one whose slots of several members decay each by its own.
#pragma once
#include <vector>

namespace convoy {

class MemberDecays {
 public:
  virtual ~MemberDecays() = default;
  // One for each member of the slot, from now on in place of the slot's own.
  virtual void set_weight_decays(int slot, const std::vector<double>& decays) = 0;
};

}  // namespace convoy
