#include "strategies/parts/shards/unit_layout.h"

#include <algorithm>
#include <numeric>

#include "strategies/parts/slot_groups.h"

namespace convoy {
namespace {

int64_t padded(int64_t elements, int64_t unit) { return (elements + unit - 1) / unit * unit; }

UnitLayout::Range common(const UnitLayout::Range& a, const UnitLayout::Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

UnitLayout::UnitLayout(const std::vector<ParameterPtr>& parameters, int ranks, int64_t alignment,
                       const Component& optimizer)
    : ranks_(ranks) {
  std::vector<int> all(parameters.size());
  std::iota(all.begin(), all.end(), 0);
  int64_t end = 0;
  for (const SlotGroup& group : slot_groups(parameters, all, optimizer)) {
    const int64_t begin = end;
    for (int member : group.members) {
      parameters_.push_back(parameters[static_cast<size_t>(member)]);
      offsets_.push_back(end);
      const int64_t size = parameters_.back()->value.numel();
      end += padded(size, alignment);
      if (end > offsets_.back() + size) gaps_.push_back({offsets_.back() + size, end});
    }
    runs_.push_back({{begin, end}, group.group, group.counted});
  }
  part_ = padded((end + ranks - 1) / ranks, alignment);
  if (whole() == end) return;
  gaps_.push_back({end, whole()});
  runs_.back().range.end = whole();
}

std::vector<UnitLayout::Slot> UnitLayout::slots(int rank) const {
  const Range mine{rank * part_, (rank + 1) * part_};
  std::vector<Slot> slots;
  for (const Slot& run : runs_) {
    const Range both = common(run.range, mine);
    if (both.size() > 0) slots.push_back({{both.begin - mine.begin, both.end - mine.begin}, run.group, run.counted});
  }
  return slots;
}

UnitLayout::Range UnitLayout::held(size_t parameter, int rank) const {
  const int64_t begin = offsets_[parameter];
  const Range both = common({begin, begin + parameters_[parameter]->value.numel()}, {rank * part_, (rank + 1) * part_});
  return {both.begin - begin, std::max(both.end, both.begin) - begin};
}

}  // namespace convoy
