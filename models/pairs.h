// Inputs of NCF for pairs of a user and its items, in one pass forward and one backward. LibTorch's operations (narrow,
// multiply, concatenate) would be a dozen.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

struct Pairs {
  at::Tensor product;  // [.., B, N, F]: product of the first F features of user and item
  at::Tensor row;      // [.., B, D − F + C]: the other user features, then the row's numbers
  at::Tensor item;     // [.., B, N, D − F + I]: the other item features, then the item's numbers
};

// user [.., B, D], item [.., B, N, D], row numbers [.., B, C] or undefined, item numbers [.., B, N, I] or undefined. An
// empty result is undefined. On the CPU it is differentiable once, in user and item; the numbers get no gradient.
Pairs pairs_of(const at::Tensor& user, const at::Tensor& item, const at::Tensor& row_numbers,
               const at::Tensor& item_numbers, int64_t factors);

}  // namespace convoy
