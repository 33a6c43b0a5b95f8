#include "strategies/shards/unit_layout.h"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "strategies/common/step/gradient_collector.h"

namespace convoy {
namespace {

int64_t size_of(const at::Tensor& buffer) { return buffer.numel(); }
bool smaller(const at::Tensor& a, const at::Tensor& b) { return size_of(a) < size_of(b); }

}  // namespace

at::Tensor BufferPool::take(int64_t bytes) {
  std::sort(free_.begin(), free_.end(), smaller);
  auto fit = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) { return size_of(one) >= bytes; });
  // A much larger buffer stays: its usual user will need it soon.
  if (fit != free_.end() && size_of(*fit) < 2 * bytes) {
    at::Tensor found = std::move(*fit);
    free_.erase(fit);
    kept_ -= size_of(found);
    return lend(std::move(found));
  }
  lent_ += bytes;
  peak_ = std::max(peak_, lent_);
  make_room();
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

at::Tensor BufferPool::lend(at::Tensor buffer) {
  lent_ += size_of(buffer);
  peak_ = std::max(peak_, lent_);
  make_room();
  return buffer;
}

// Frees kept buffers until the limit holds: the smallest one that is large enough, or else the largest.
void BufferPool::make_room() {
  while (!free_.empty() && lent_ + kept_ > peak_) {
    const int64_t excess = lent_ + kept_ - peak_;
    auto fit = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& one) { return size_of(one) >= excess; });
    if (fit == free_.end()) --fit;
    kept_ -= size_of(*fit);
    free_.erase(fit);
  }
}

void BufferPool::give(at::Tensor buffer) {
  if (!buffer.defined()) return;
  lent_ -= size_of(buffer);
  kept_ += size_of(buffer);
  free_.push_back(std::move(buffer));
}

at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype) {
  return buffer.narrow(0, 0, elements * int64_t(c10::elementSize(dtype))).view(dtype);
}

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
  for (const ParameterGroup& group : parameter_groups(parameters, all, optimizer)) {
    const int64_t begin = end;
    for (int member : group.members) {
      parameters_.push_back(parameters[size_t(member)]);
      offsets_.push_back(end);
      const int64_t size = parameters_.back()->value.numel();
      end += padded(size, alignment);
      if (end > offsets_.back() + size) gaps_.push_back({offsets_.back() + size, end});
    }
    runs_.push_back({{begin, end}, group.group, group.counted});
  }
  shard_size_ = padded((end + ranks - 1) / ranks, alignment);
  if (whole() == end) return;
  gaps_.push_back({end, whole()});
  runs_.back().range.end = whole();
}

std::vector<UnitLayout::Slot> UnitLayout::slots(int rank) const {
  const Range mine{rank * shard_size_, (rank + 1) * shard_size_};
  std::vector<Slot> slots;
  for (const Slot& run : runs_) {
    const Range both = common(run.range, mine);
    if (both.size() > 0) slots.push_back({{both.begin - mine.begin, both.end - mine.begin}, run.group, run.counted});
  }
  return slots;
}

UnitLayout::Range UnitLayout::local_range(size_t parameter, int rank) const {
  const int64_t begin = offsets_[parameter];
  const Range both =
      common({begin, begin + parameters_[parameter]->value.numel()}, {rank * shard_size_, (rank + 1) * shard_size_});
  return {both.begin - begin, std::max(both.end, both.begin) - begin};
}

}  // namespace convoy
