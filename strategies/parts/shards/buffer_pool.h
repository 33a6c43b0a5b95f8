// BufferPool: memory that is needed again and again for a short while, such as gathered parameters and their gradients.
//
// Giving such buffers back to the system each time costs several times what filling them does. The pool keeps what came
// back and lends it for what is more than half as large. What it has, lent and kept, is never more than the most that was
// lent at a time: where a new one would go beyond that, kept ones of other sizes make room.
// Threads: one at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace convoy {

class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  // At least `bytes`, aligned for every dtype; what it holds is left over from others.
  at::Tensor take(int64_t bytes);
  void give(at::Tensor buffer);

  int64_t bytes() const { return lent_ + kept_; }
  int64_t peak() const { return peak_; }  // the most that was lent at a time

 private:
  at::Tensor lend(at::Tensor buffer);
  void make_room();

  at::Device device_;
  std::vector<at::Tensor> free_;
  int64_t lent_ = 0;
  int64_t kept_ = 0;
  int64_t peak_ = 0;
};

// The first elements of a buffer as numbers.
at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype);

}  // namespace convoy
