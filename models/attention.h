// Causal self-attention of many heads (Vaswani et al., "Attention is all you need", 2017), and rotary positions (Su et
// al., "RoFormer", 2021).
//
// Under a tensor group the product with queries, keys and values has this rank's heads only: how many is read off the
// tensor, the size of one head is what stays.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/layers.h"

namespace convoy {

// x [.., T, size], size even: features (i, i + size/2) of position t turned by the angle t · base^(−2i/size).
// The dtype stays; angles are taken in double.
class Rotary {
 public:
  Rotary(int64_t size, double base) : size_(size), base_(base) {}
  at::Tensor operator()(const at::Tensor& x);

 private:
  int64_t size_;
  double base_;
  at::Tensor cosine_, sine_;  // [T, size/2] of the last call's length, dtype and device
};

// q, k, v [N, heads, T, size] → [N, heads, T, size]: position t attends to 0 … t. With `dropout` the attention weights
// are dropped by it, without the fused kernel, which draws from the process-wide generator; null: fused.
// `rows` are the sizes that N was made of ([B] or [members, B]).
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Layer& dropout,
                            at::IntArrayRef rows);

// qkv [.., B, T, 3 · heads · head_size], queries, keys and values one after the other → [.., B, T, heads · head_size].
// rotary: null without.
at::Tensor self_attention(const at::Tensor& qkv, int64_t head_size, Rotary* rotary, const Layer& dropout);

}  // namespace convoy
