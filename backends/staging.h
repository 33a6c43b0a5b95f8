// Staging: gives a transport tensors that it can take (contiguous, on its device) and brings results back.
//
// Copies are made only where a tensor is strided or lies elsewhere. On CUDA copies run on the current stream; a copy
// to the host is waited for, through pinned memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace convoy {

// Waits until what was issued on the device's current stream is over; nothing for the host.
void finish_stream(const at::Device& device);

class Staging {
 public:
  // target: where the transport wants tensors that lie on none of `taken`.
  Staging(std::vector<at::DeviceType> taken, at::Device target);

  // A contiguous tensor with the values of `tensor`, which is kept until the operation is over.
  at::Tensor input(const at::Tensor& tensor);
  // A contiguous tensor whose values `finish` copies to `tensor`; `filled`: it begins with the values of `tensor`.
  at::Tensor output(const at::Tensor& tensor, bool filled = false);

  void finish();  // copies results back
  void drop();    // forgets all tensors

 private:
  bool fits(const at::Tensor& tensor) const;
  at::Tensor replacement(const at::Tensor& tensor, bool filled) const;

  std::vector<at::DeviceType> taken_;
  at::Device target_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // to, from
};

}  // namespace convoy
