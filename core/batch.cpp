#include "core/batch.h"

#include <algorithm>

#include "core/base/error.h"

namespace convoy {

const at::Tensor* Batch::find(const std::string& name) const {
  for (const auto& entry : tensors) {
    if (entry.first == name) return &entry.second;
  }
  return nullptr;
}

at::Tensor Batch::optional(const std::string& name) const {
  const at::Tensor* found = find(name);
  return found == nullptr ? at::Tensor() : *found;
}

const at::Tensor& Batch::at(const std::string& name) const {
  const at::Tensor* found = find(name);
  if (found != nullptr) return *found;
  std::vector<std::string> there;
  for (const auto& entry : tensors) there.push_back(entry.first);
  throw Error(Failure::config, "the batch has no field '", name, "'; this data set gives ",
              there.empty() ? "no fields" : join(there, ", "), "; use another data set or model, or Batch::find");
}

Batch Batch::slice(int64_t begin, int64_t end) const {
  CONVOY_CHECK(0 <= begin && begin <= end && end <= rows, "slice [", begin, ", ", end, ") of ", rows, " rows");
  CONVOY_CHECK(micro.size() <= 1, "rows of a share of ", micro.size(), " micro-batches are not contiguous");
  Batch part;
  part.tensors.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    part.tensors.emplace_back(name, tensor.slice(0, begin, end));
  }
  part.rows = end - begin;
  part.first_row = first_row + begin;
  part.global_rows = global_rows;
  part.nominal_rows = nominal_rows;
  return part;
}

std::vector<Batch> Batch::micro_batches() const {
  if (micro.empty()) return {*this};
  std::vector<Batch> all;
  for (const MicroBatch& one : micro) {
    Batch part = *this;
    part.micro.clear();
    part = part.slice(one.begin, one.end);
    part.first_row = one.first_row;
    all.push_back(std::move(part));
  }
  return all;
}

Batch Batch::to(at::Device device, bool non_blocking) const {
  Batch moved = *this;
  for (auto& entry : moved.tensors) {
    if (entry.second.device() != device) entry.second = entry.second.to(device, non_blocking);
  }
  return moved;
}

std::pair<int64_t, int64_t> share_of(int64_t rows, int64_t index, int64_t count) {
  CONVOY_CHECK(rows >= 0 && count > 0 && 0 <= index && index < count, "share ", index, " of ", count);
  const int64_t base = rows / count;
  const int64_t larger = rows % count;
  const int64_t begin = index * base + std::min(index, larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

std::vector<MicroBatch> micro_batches_of(int64_t rows, int64_t micro_batches, int64_t index, int64_t count) {
  std::vector<MicroBatch> all;
  int64_t begin = 0;
  // Share that gets the first surplus row of the micro-batch. It rotates, so that shares differ by at most one row.
  int64_t next = 0;
  for (int64_t number = 0; number < micro_batches; ++number) {
    const auto [first, last] = share_of(rows, number, micro_batches);
    const int64_t each = (last - first) / count, surplus = (last - first) % count;
    const auto gets_one = [&](int64_t share) { return (share - next + count) % count < surplus; };
    int64_t from = first + index * each;
    for (int64_t share = 0; share < index; ++share) from += gets_one(share) ? 1 : 0;
    const int64_t mine = each + (gets_one(index) ? 1 : 0);
    all.push_back({begin, begin + mine, from});
    begin += mine;
    next = (next + surplus) % count;
  }
  return all;
}

}  // namespace convoy
