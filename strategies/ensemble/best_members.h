// BestMembers: the weights that members of an ensemble had at their best evaluation. A member that stops early is
// restored to them. One copy of parameters and buffers for each member that stops early.
// Threads: the rank's thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/state.h"
#include "strategies/ensemble/stacked_storage.h"

namespace convoy {

class BestMembers {
 public:
  // Makes room for the members with a patience above 0.
  BestMembers(const StackedStorage& storage, const std::vector<MemberSettings>& rows);

  // Copies the member in this row of the storage.
  void keep(const StackedStorage& storage, int64_t row, int64_t member);
  // Writes the copy into the row. Does nothing if the member has none: it never improved, or an earlier version saved.
  void restore(const StackedStorage& storage, int64_t row, int64_t member) const;
  // Evaluations before are not comparable with those that follow.
  void reset();

  // Copies as optional state, each with the number of its member.
  void visit_state(const StateVisitor& visit) const;

 private:
  struct Copy {
    std::vector<std::pair<std::string, at::Tensor>> tensors;  // by canonical name, in the order of the storage
    at::Tensor kept;                                          // bool [1]
  };
  std::map<int64_t, Copy> copies_;  // by member number
};

}  // namespace convoy
