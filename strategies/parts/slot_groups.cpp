#include "strategies/parts/slot_groups.h"

#include <algorithm>

namespace convoy {

std::vector<SlotGroup> slot_groups(const std::vector<ParameterPtr>& parameters, const std::vector<int>& listed,
                                   const Component& optimizer) {
  std::vector<SlotGroup> groups;
  for (int index : listed) {
    const Parameter& parameter = *parameters[static_cast<size_t>(index)];
    const GroupSettings settings = group_settings(optimizer, parameter.name);
    const auto alike = [&](const SlotGroup& other) {
      return other.group.learning_rate_factor == settings.learning_rate_factor &&
             other.group.weight_decay == settings.weight_decay && other.counted == parameter.counted;
    };
    auto group = std::find_if(groups.begin(), groups.end(), alike);
    if (group == groups.end()) group = groups.insert(groups.end(), {settings, parameter.counted, {}});
    group->members.push_back(index);
  }
  return groups;
}

}  // namespace convoy
