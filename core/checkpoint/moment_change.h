// MomentChange: how the optimizer's moments in a checkpoint differ from those that a run wants.
//
// Moments that the checkpoint lacks keep their initial values, which are zeros. Then updates are counted from zero too: Adam
// corrects the bias of its moments by that count. Moments that nobody wants are left out.
#pragma once
#include <set>
#include <string>
#include <vector>

namespace convoy {

struct MomentChange {
  std::set<std::string> missing, unused;  // names: exp_avg, momentum, …

  // Of keys as StateEntry::key gives them.
  bool starts_anew(const std::string& key) const;
  bool ignores(const std::string& key) const;            // starts anew, or is not used
  void erase_from(std::set<std::string>& wanted) const;  // what starts anew

  std::vector<std::string> notes(const std::string& checkpoint) const;  // for the log
};

MomentChange moment_change(const std::set<std::string>& stored,
                           const std::vector<const std::set<std::string>*>& wanted);

}  // namespace convoy
