// BufferPool: memory that is needed again and again for a short while, such as gathered parameters and their gradients.
//
// Giving such buffers back to the system each time costs several times what filling them does. The pool keeps what came
// back and lends it for what is more than half as large; where none will do, it makes a new one in place of the largest of
// those that are too small.
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

  int64_t bytes() const { return bytes_; }  // lent and kept
  int64_t peak() const { return peak_; }    // the most that there were at a time

 private:
  at::Device device_;
  std::vector<at::Tensor> free_;
  int64_t bytes_ = 0;
  int64_t peak_ = 0;
};

// The first elements of a buffer as numbers.
at::Tensor numbers_in(const at::Tensor& buffer, int64_t elements, at::ScalarType dtype);

}  // namespace convoy
