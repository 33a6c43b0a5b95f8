// Attention of gpt and llama, and their sizes for blocks and decoder.
//
// Causal multi-head self-attention (Vaswani et al., "Attention is all you need", 2017) and rotary positions (Su et al.,
// "RoFormer", 2021).
//
// Under tensor parallelism the product of queries, keys and values has only this rank's heads. Their number follows
// from the tensor; the size of a head is fixed.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <string>

#include "core/generation.h"
#include "core/layers.h"

namespace convoy {

// x [.., T, size], size even: rotates features (i, i + size/2) of position t by the angle t · base^(−2i/size).
// Keeps the dtype; computes angles in double.
class Rotary {
 public:
  Rotary(int64_t size, double base) : size_(size), base_(base) {}
  at::Tensor operator()(const at::Tensor& x);

 private:
  int64_t size_;
  double base_;
  at::Tensor cosine_, sine_;  // [T, size/2], for the length, dtype and device of the last call
};

// q, k, v [N, heads, T, size] → [N, heads, T, size]: position t attends to 0 … t. `dropout` drops attention weights and
// prevents the fused kernel, which draws from the process-wide generator; null: fused kernel. N combines the dimensions
// `rows` ([B] or [members, B]) and `groups` of heads in each row.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Layer& dropout,
                            at::IntArrayRef rows, int64_t groups = 1);

// qkv [.., B, T, 3 · heads · head_size]: queries, then keys, then values → [.., B, T, heads · head_size].
// rotary: may be null.
at::Tensor self_attention(const at::Tensor& qkv, int64_t head_size, Rotary* rotary, const Layer& dropout);

// Grouped-query attention (Ainslie et al., 2023): `queries` heads share a key and a value.
// qkv [.., B, T, groups · (queries + 2) · head_size]: for each group its queries, then its key, then its value →
// [.., B, T, groups · queries · head_size]. Keys and values are not copied for each query. rotary: may be null.
at::Tensor grouped_attention(const at::Tensor& qkv, int64_t head_size, int64_t queries, Rotary* rotary,
                             const Layer& dropout);

struct TransformerSizes {
  int64_t vocabulary = 0;
  int64_t length = 0;   // longest sequence
  int64_t context = 0;  // learned positions
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;  // 0: queries, keys and values of all heads one after another
  int64_t dim = 0;
  int64_t mlp = 0;
  bool rotary = false;
  double rotary_base = 0;
  bool tied = false;
  double dropout = 0;
  double attention_dropout = 0;
  bool bias = true;
  bool rms_norm = false;  // else layer norm
  double norm_eps = 0;
  bool gated = false;  // down(activation(gate) · up), else down(activation(up))
  std::string activation;
  EmbeddingOptions::Rows rows = EmbeddingOptions::Rows::dense;

  int64_t head_size() const { return dim / heads; }
};

std::unique_ptr<TokenDecoder> make_transformer_decoder(const TransformerSizes& sizes, const ParameterValues& values);

}  // namespace convoy
