// Staging: provides tensors that a transport accepts (contiguous, on its device) and copies results back.
//
// It copies only strided tensors and tensors on other devices. On CUDA the copies run on the current stream; a copy to
// the host uses pinned memory and blocks until it is complete.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace convoy {

// Blocks until the device's current stream is complete. Returns at once on the CPU.
void finish_stream(const at::Device& device);

class Staging {
 public:
  // `target`: device for copies of tensors that are on none of the `taken` devices.
  Staging(std::vector<at::DeviceType> taken, at::Device target);

  // Returns a contiguous tensor with the values of `tensor` and keeps it until drop().
  at::Tensor input(const at::Tensor& tensor);
  // Returns a contiguous tensor; `finish` copies its values to `tensor`. `filled`: it starts with the values of
  // `tensor`.
  at::Tensor output(const at::Tensor& tensor, bool filled = false);

  void finish();  // copies results to the caller's tensors
  void drop();    // releases all tensors

 private:
  bool fits(const at::Tensor& tensor) const;
  at::Tensor replacement(const at::Tensor& tensor, bool filled) const;

  std::vector<at::DeviceType> taken_;
  at::Device target_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // to, from
};

}  // namespace convoy
