// Features as bytes: where a batch's "features" are uint8, 255 stands for 1. Whoever feeds a model converts them last, on its
// device, so that a loader and a bus move a quarter.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

// uint8 of any shape → `dtype`, by way of float, so that it equals what a data set of floats hands out, to the last bit.
at::Tensor from_bytes(const at::Tensor& bytes, at::ScalarType dtype);

}  // namespace convoy
