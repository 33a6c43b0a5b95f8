// SwappedStorage: a tensor's memory comes and goes, while the tensor, its views and what autograd saved of them stay.
//
// Parameters that are views of one keep their identity, sizes and gradient accumulators; what a graph saved is the parameter
// itself, so that backward finds the values again when memory is put back. A view may not be touched while there is none:
// LibTorch's typed accessors throw ("its data is not allocated yet"), its elementwise kernels do not look and crash.
// Threads: one at a time.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace convoy {

class SwappedStorage {
 public:
  // Without memory.
  SwappedStorage(int64_t elements, at::ScalarType dtype, at::Device device);
  ~SwappedStorage();
  SwappedStorage(const SwappedStorage&) = delete;
  SwappedStorage& operator=(const SwappedStorage&) = delete;

  // Contiguous, from element `offset` on; no autograd.
  at::Tensor view(int64_t offset, at::IntArrayRef shape) const;

  // `memory`: contiguous, on the device, at least as many bytes; kept until it is taken back.
  void put(at::Tensor memory);
  at::Tensor take();
  bool present() const { return memory_.defined(); }

 private:
  c10::Storage storage_;
  at::TensorOptions options_;
  at::Tensor memory_;
};

// A tensor of this shape that has no memory.
at::Tensor without_memory(at::IntArrayRef shape, at::TensorOptions options);

}  // namespace convoy
