// Rows of users beside rows of items: what a factorisation and the first layer of an MLP take of them, in one pass forward and
// one backward instead of a dozen operations on slices.
#pragma once
#include <ATen/core/Tensor.h>

namespace convoy {

struct Pairs {
  at::Tensor product;  // [.., B, N, F]: of the first F features of user and item
  at::Tensor row;      // [.., B, D − F + C]: the user's other features, and the context
  at::Tensor item;     // [.., B, N, D − F]
};

// user [.., B, D], item [.., B, N, D], context [.., B, C] or undefined. What is empty is undefined. Differentiable once in user
// and item on the CPU, where context is data.
Pairs pairs_of(const at::Tensor& user, const at::Tensor& item, const at::Tensor& context, int64_t factors);

}  // namespace convoy
