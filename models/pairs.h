// Rows of users beside rows of items: what a factorisation and the first layer of an MLP take of them, in one pass forward and
// one backward instead of a dozen operations on slices.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

struct Pairs {
  at::Tensor product;  // [.., B, N, F]: of the first F features of user and item
  at::Tensor row;      // [.., B, D − F + C]: the user's other features, and the row's numbers
  at::Tensor item;     // [.., B, N, D − F + I]: the item's other features, and the item's numbers
};

// user [.., B, D], item [.., B, N, D], row numbers [.., B, C] or undefined, item numbers [.., B, N, I] or undefined. An empty
// result is undefined. Differentiable once in user and item on the CPU, where the numbers are data.
Pairs pairs_of(const at::Tensor& user, const at::Tensor& item, const at::Tensor& row_numbers,
               const at::Tensor& item_numbers, int64_t factors);

}  // namespace convoy
