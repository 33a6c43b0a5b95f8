#include "core/data/synthetic_tokens.h"

#include "core/random_keys.h"
#include "core/text.h"

namespace convoy {

SyntheticTokens::SyntheticTokens(const Shape& shape, uint64_t seed)
    : shape_(shape), key_(random_key(seed, "synthetic tokens")) {
  const uint64_t key = random_key(seed, "synthetic successors");
  next_.resize(static_cast<size_t>(shape_.vocabulary * successors));
  for (size_t i = 0; i < next_.size(); ++i)
    next_[i] = static_cast<int64_t>(random_below(key, i, static_cast<uint64_t>(shape_.vocabulary)));
}

DataContents SyntheticTokens::contents() const {
  return {combined_fingerprint({"tokens", str(key_), str(shape_.rows), str(shape_.vocabulary), str(shape_.length)}),
          shape_.rows,
          {}};
}

Schema SyntheticTokens::schema() const {
  Schema schema;
  schema.fields["tokens"] = {{shape_.length}, at::kLong, shape_.vocabulary};
  schema.fields["target"] = {{shape_.length}, at::kLong, shape_.vocabulary};
  return schema;
}

Batch SyntheticTokens::gather(Split split, const at::Tensor& indices, int64_t /*epoch*/, Buffers& buffers) const {
  const int64_t rows = indices.numel();
  at::Tensor tokens = buffers.take("tokens", {rows, shape_.length}, at::kLong);
  at::Tensor target = buffers.take("target", {rows, shape_.length}, at::kLong);
  const int64_t offset = split == Split::train ? 0 : shape_.rows;
  const int64_t* samples = indices.const_data_ptr<int64_t>();
  auto* from = tokens.mutable_data_ptr<int64_t>();
  auto* to = target.mutable_data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; ++r, from += shape_.length, to += shape_.length) {
    const auto row = static_cast<uint64_t>(offset + samples[r]);
    // Draw 0 begins the sequence, draw t + 1 follows token t; each counter gives four.
    auto words = philox(key_, row, 0);
    int64_t token = static_cast<int64_t>(uint64_t(words[0]) * static_cast<uint64_t>(shape_.vocabulary) >> 32);
    for (int64_t t = 0; t < shape_.length; ++t) {
      const auto draw = static_cast<uint64_t>(t + 1);
      if (draw % 4 == 0) words = philox(key_, row, draw / 4);
      from[t] = token;
      token = next_[static_cast<size_t>(token * successors + static_cast<int64_t>(words[draw % 4] % successors))];
      to[t] = token;
    }
  }
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"tokens", tokens}, {"target", target}};
  return batch;
}

}  // namespace convoy
