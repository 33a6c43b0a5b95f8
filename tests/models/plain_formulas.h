// Rows of tokens, and layers of a transformer in plain operations, with the parameters of a given model.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/data/dataset.h"
#include "tests/models/building.h"

namespace convoy {

constexpr int64_t vocabulary = 11, length = 7;

inline Json with(Json options, const Json& changes) {
  for (const auto& [key, value] : changes.items()) options[key] = value;
  return options;
}

inline Schema text(int64_t tokens = vocabulary, int64_t sequence = length) {
  Schema schema;
  schema.fields["tokens"] = {{sequence}, at::kLong, tokens};
  schema.fields["target"] = {{sequence}, at::kLong, tokens};
  return schema;
}

inline Batch sequences(int64_t rows) {
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"tokens", at::randint(0, vocabulary, {rows, length}, at::kLong)},
                   {"target", at::randint(0, vocabulary, {rows, length}, at::kLong)}};
  return batch;
}

inline double worst(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / std::max(b.abs().max().item<double>(), 1e-30);
}

inline at::Tensor product(const Plain& plain, const std::string& name, const at::Tensor& x) {
  const at::Tensor out = x.matmul(plain.value(name + ".weight").t());
  return plain.store->by_name.count(name + ".bias") > 0 ? out + plain.value(name + ".bias") : out;
}

// Position t, head by head, as in the formula.
inline at::Tensor turned(const at::Tensor& x, double base) {
  at::Tensor out = x.clone();
  const int64_t half = x.size(-1) / 2;
  for (int64_t t = 0; t < x.size(-2); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(t) * std::pow(base, -2.0 * double(i) / double(2 * half));
      const at::Tensor a = x.select(-2, t).select(-1, i), b = x.select(-2, t).select(-1, i + half);
      out.select(-2, t).select(-1, i).copy_(a * std::cos(angle) - b * std::sin(angle));
      out.select(-2, t).select(-1, i + half).copy_(b * std::cos(angle) + a * std::sin(angle));
    }
  }
  return out;
}

}  // namespace convoy
