#include "models/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/model.h"

namespace convoy {

at::Tensor Rotary::operator()(const at::Tensor& x) {
  const int64_t length = x.size(-2);
  if (!cosine_.defined() || cosine_.size(0) != length || cosine_.scalar_type() != x.scalar_type() ||
      cosine_.device() != x.device()) {
    at::NoGradGuard no_grad;
    const at::Tensor power = at::arange(size_ / 2, at::kDouble) * (-2.0 / double(size_));
    const at::Tensor angle =
        at::arange(length, at::kDouble).unsqueeze(-1) * at::pow(at::Scalar(base_), power).unsqueeze(0);
    cosine_ = angle.cos().to(x.options());
    sine_ = angle.sin().to(x.options());
  }
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cosine_ - halves[1] * sine_, halves[1] * cosine_ + halves[0] * sine_}, -1);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Layer& dropout,
                            at::IntArrayRef rows, int64_t groups) {
  if (!dropout) return at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  const int64_t length = q.size(-2);
  const at::Tensor future = at::ones({length, length}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(double(q.size(-1)));
  at::Tensor weights = scores.masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(-1);
  // Drawn as [.., B, heads · T · T]: rows lead, and this rank's heads are one range of the last dimension, like a shard
  // of any layer's output.
  std::vector<int64_t> shape = rows.vec();
  shape.push_back(groups * q.size(1) * length * length);
  weights = dropout->forward(weights.reshape(shape)).reshape(weights.sizes());
  return weights.matmul(v);
}

at::Tensor self_attention(const at::Tensor& qkv, int64_t head_size, Rotary* rotary, const Layer& dropout) {
  const int64_t width = qkv.size(-1) / 3;  // width of this rank's heads
  if (qkv.dim() < 3 || qkv.size(-1) != 3 * width || width % head_size != 0)
    throw Error(Failure::config, "attention takes queries, keys and values [B, T, 3 × width] with heads of ", head_size,
                ", and was given ", qkv.sizes());
  const auto rows = qkv.sizes().slice(0, size_t(qkv.dim() - 2));
  const int64_t length = qkv.size(-2);
  // [.., B, T, 3 · width] → three of [N, heads, T, head_size]: the fused kernel needs four dimensions.
  const auto qkv_heads =
      qkv.flatten(0, -3).unflatten(-1, {3, width / head_size, head_size}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor q = rotary != nullptr ? (*rotary)(qkv_heads[0]) : qkv_heads[0];
  const at::Tensor k = rotary != nullptr ? (*rotary)(qkv_heads[1]) : qkv_heads[1];
  std::vector<int64_t> shape = rows.vec();
  shape.insert(shape.end(), {length, width});
  return causal_attention(q, k, qkv_heads[2], dropout, rows).transpose(-2, -3).reshape(shape);
}

at::Tensor grouped_attention(const at::Tensor& qkv, int64_t head_size, int64_t queries, Rotary* rotary,
                             const Layer& dropout) {
  const int64_t group = (queries + 2) * head_size, groups = qkv.size(-1) / group;
  if (qkv.dim() < 3 || qkv.size(-1) != groups * group)
    throw Error(Failure::config, "attention takes groups of ", queries, " queries, a key and a value with heads of ",
                head_size, ", and was given ", qkv.sizes());
  const auto rows = qkv.sizes().slice(0, size_t(qkv.dim() - 2));
  const int64_t length = qkv.size(-2);
  // [.., B, T, groups · group] → [N, groups, queries + 2, T, head_size]
  const at::Tensor heads = qkv.flatten(0, -3).unflatten(-1, {groups, queries + 2, head_size}).permute({0, 2, 3, 1, 4});
  const auto turned = [&](const at::Tensor& x) { return (rotary != nullptr ? (*rotary)(x) : x).flatten(0, 1); };
  // A group is a row of the fused kernel. Its key and value have a stride of 0 between its heads.
  const auto shared = [&](const at::Tensor& x) { return x.expand({-1, queries, -1, -1}); };
  const at::Tensor q = turned(heads.narrow(2, 0, queries));
  const at::Tensor k = shared(turned(heads.narrow(2, queries, 1)));
  const at::Tensor v = shared(heads.narrow(2, queries + 1, 1).flatten(0, 1));
  const at::Tensor attended = causal_attention(q, k, v, dropout, rows, groups);  // [N · groups, queries, T, head_size]
  std::vector<int64_t> shape = rows.vec();
  shape.insert(shape.end(), {length, groups * queries * head_size});
  return attended.unflatten(0, {-1, groups}).permute({0, 3, 1, 2, 4}).reshape(shape);
}

}  // namespace convoy
