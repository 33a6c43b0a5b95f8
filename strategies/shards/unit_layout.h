// UnitLayout: position of each parameter in a unit's flat buffer, and the shard of each rank.
//
// The buffer is divided into equal, contiguous shards, one per rank of a group. Parameters that one optimizer loop can
// update are adjacent. Each parameter starts at a multiple of 64 bytes; gaps are zero in values and gradients. A shard
// may begin and end within a parameter. Plain data: no tensor is touched.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

#include "core/optim/optimizer.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

// BufferPool: memory that is needed repeatedly for a short time, such as gathered parameters and their gradients.
//
// Freeing and allocating such buffers each time costs several times as much as filling them. The pool keeps returned
// buffers and lends one for requests of more than half its size. Lent and kept memory together never exceed the peak of
// lent memory. Unused buffers are freed to make room for a new one.
// Threads: one at a time.
class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  // Returns at least `bytes`, aligned for every dtype; the content is undefined.
  at::Tensor take(int64_t bytes);
  void give(at::Tensor buffer);

  int64_t bytes() const { return lent_ + kept_; }
  int64_t peak() const { return peak_; }  // largest sum of lent bytes at one time

 private:
  at::Tensor lend(at::Tensor buffer);
  void make_room();

  at::Device device_;
  std::vector<at::Tensor> free_;
  int64_t lent_ = 0;
  int64_t kept_ = 0;
  int64_t peak_ = 0;
};

// Views the first elements of a buffer in a dtype.
at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype);

class UnitLayout {
 public:
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  // Range of a rank's shard that one optimizer loop updates.
  struct Slot {
    Range range;  // within the shard
    GroupSettings group;
    bool counted = true;
  };

  // `alignment`: elements in 64 bytes, in the smallest dtype of the buffer.
  UnitLayout(const std::vector<ParameterPtr>& parameters, int ranks, int64_t alignment, const Component& optimizer);

  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // in order of storage
  int64_t offset(size_t parameter) const { return offsets_[parameter]; }       // offset in the buffer
  const std::vector<Range>& gaps() const { return gaps_; }                     // gaps in the buffer
  int ranks() const { return ranks_; }
  int64_t shard_size() const { return shard_size_; }  // elements per rank
  int64_t whole() const { return shard_size_ * ranks_; }

  std::vector<Slot> slots(int rank) const;
  // Returns the parameter's elements (row-major) in the rank's shard; empty: none. They begin at `offset(parameter) +
  // begin - rank · part()` of the shard.
  Range local_range(size_t parameter, int rank) const;

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<int64_t> offsets_;
  std::vector<Slot> runs_;  // ranges of the whole buffer
  std::vector<Range> gaps_;
  int ranks_;
  int64_t shard_size_ = 0;
};

}  // namespace convoy
