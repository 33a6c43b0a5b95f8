// Decoder of gpt and llama: the same formulas as the blocks of transformer.cpp, for new tokens only. Keys and values of
// earlier tokens are in a cache of 2 · layers · key heads · context · head size numbers.
//
// One new token is a chain of products of a matrix and a vector (core/tensors/matrix_vector.h); each reads its weights
// once. Several new tokens, such as a prompt, share each read by a matrix product.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "core/tensors/matrix_vector.h"
#include "models/common.h"
#include "models/transformer.h"

namespace convoy {
namespace {

// A linear layer: weight [out, in] and bias [out], which may be undefined.
struct DecoderLinear {
  at::Tensor weight, bias;

  // inputs [count, in] → [count, out]
  at::Tensor operator()(const at::Tensor& inputs) const {
    if (inputs.size(0) > 1) return at::linear(inputs, weight, bias);
    at::Tensor out = at::empty({1, weight.size(0)}, at::kFloat);
    matrix_vector(weight.const_data_ptr<float>(), inputs.const_data_ptr<float>(),
                  bias.defined() ? bias.const_data_ptr<float>() : nullptr, out.mutable_data_ptr<float>(),
                  weight.size(0), weight.size(1));
    return out;
  }
};

struct DecoderNorm {
  at::Tensor weight, bias;  // bias undefined: RMS norm
  double eps = 0;

  at::Tensor operator()(const at::Tensor& inputs) const {
    at::Tensor out = at::empty(inputs.sizes(), at::kFloat);
    const int64_t dim = inputs.size(-1);
    const float* scale = weight.const_data_ptr<float>();
    const float* shift = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
    for (int64_t row = 0; row < inputs.size(0); ++row) {
      const float* x = inputs.const_data_ptr<float>() + row * dim;
      float* y = out.mutable_data_ptr<float>() + row * dim;
      double mean = 0, squares = 0;
      for (int64_t i = 0; shift != nullptr && i < dim; ++i) mean += double(x[i]);
      mean /= double(dim);
      for (int64_t i = 0; i < dim; ++i) squares += (double(x[i]) - mean) * (double(x[i]) - mean);
      const auto inverse = float(1 / std::sqrt(squares / double(dim) + eps));
      for (int64_t i = 0; i < dim; ++i)
        y[i] = (x[i] - float(mean)) * inverse * scale[i] + (shift == nullptr ? 0.0F : shift[i]);
    }
    return out;
  }
};

struct DecoderBlock {
  DecoderNorm attention_norm, mlp_norm;
  DecoderLinear qkv, projection, up, down;
  at::Tensor keys, values;  // [key heads, context, head size]
};

class TransformerDecoder : public TokenDecoder {
 public:
  TransformerDecoder(const TransformerSizes& sizes, const ParameterValues& values)
      : sizes_(sizes), key_heads_(sizes.key_heads > 0 ? sizes.key_heads : sizes.heads) {
    const at::NoGradGuard no_grad;
    const auto get = [&](const std::string& name) { return values(name).to(at::kCPU, at::kFloat).contiguous(); };
    const auto linear = [&](const std::string& name, bool bias) {
      return DecoderLinear{get(name + ".weight"), bias ? get(name + ".bias") : at::Tensor()};
    };
    const auto norm = [&](const std::string& name) {
      return DecoderNorm{get(name + ".weight"), sizes.rms_norm ? at::Tensor() : get(name + ".bias"), sizes.norm_eps};
    };
    tokens_ = get("embedding.tokens.weight");
    if (!sizes.rotary) positions_ = get("embedding.positions");
    for (int64_t layer = 0; layer < sizes.layers; ++layer) {
      const std::string block = str("blocks.", layer, ".");
      const std::vector<int64_t> cache{key_heads_, sizes.context, sizes.head_size()};
      blocks_.push_back(
          {norm(block + "attention_norm"), norm(block + "mlp_norm"), linear(block + "qkv", sizes.bias),
           linear(block + "projection", sizes.bias), linear(block + (sizes.gated ? "gate_up" : "up"), sizes.bias),
           linear(block + "down", sizes.bias), at::zeros(cache, at::kFloat), at::zeros(cache, at::kFloat)});
    }
    norm_ = norm("output.norm");
    output_.weight = sizes.tied ? tokens_ : get("output.linear.weight");
    if (sizes.rotary) make_angles();
  }

  int64_t vocabulary() const override { return sizes_.vocabulary; }
  int64_t context() const override { return sizes_.context; }
  int64_t length() const override { return length_; }
  void clear() override { length_ = 0; }

  const float* append(const int64_t* tokens, int64_t count) override {
    const at::NoGradGuard no_grad;
    CONVOY_CHECK(count > 0 && length_ + count <= sizes_.context, count, " tokens do not fit after ", length_);
    at::Tensor h = embedded(tokens, count);
    for (DecoderBlock& block : blocks_) {
      h += block.projection(attended(block, block.qkv(block.attention_norm(h))));
      h += block.down(hidden(block.up(block.mlp_norm(h))));
    }
    length_ += count;
    logits_ = output_(norm_(h.narrow(0, count - 1, 1)));
    return logits_.const_data_ptr<float>();
  }

 private:
  at::Tensor embedded(const int64_t* tokens, int64_t count) const {
    const int64_t dim = sizes_.dim;
    at::Tensor h = at::empty({count, dim}, at::kFloat);
    for (int64_t i = 0; i < count; ++i) {
      if (tokens[i] < 0 || tokens[i] >= sizes_.vocabulary)
        throw Error(Failure::config, "token ", tokens[i], " is not one of the model's ", sizes_.vocabulary);
      const float* token = tokens_.const_data_ptr<float>() + tokens[i] * dim;
      float* to = h.mutable_data_ptr<float>() + i * dim;
      std::copy_n(token, dim, to);
      if (sizes_.rotary) continue;
      const float* position = positions_.const_data_ptr<float>() + (length_ + i) * dim;
      for (int64_t k = 0; k < dim; ++k) to[k] += position[k];
    }
    return h;
  }

  at::Tensor hidden(const at::Tensor& up) const {
    if (!sizes_.gated) return apply_activation(up, sizes_.activation);
    return apply_activation(up.narrow(-1, 0, sizes_.mlp), sizes_.activation) * up.narrow(-1, sizes_.mlp, sizes_.mlp);
  }

  // Where head `head` of the queries is in a row of qkv; and the key and the value of key head `head`.
  int64_t query_at(int64_t head) const {
    const int64_t size = sizes_.head_size(), queries = sizes_.heads / key_heads_;
    if (sizes_.key_heads == 0) return head * size;
    return (head / queries * (queries + 2) + head % queries) * size;
  }
  int64_t key_at(int64_t head) const {
    const int64_t size = sizes_.head_size(), queries = sizes_.heads / key_heads_;
    return sizes_.key_heads == 0 ? (sizes_.heads + head) * size : (head * (queries + 2) + queries) * size;
  }
  int64_t value_at(int64_t head) const {
    return key_at(head) + (sizes_.key_heads == 0 ? sizes_.heads : 1) * sizes_.head_size();
  }

  // Writes x [size], turned by the angles of `position` (models/transformer.h), to `to`.
  void turn(const float* x, int64_t position, float* to) const {
    const int64_t size = sizes_.head_size(), half = size / 2;
    if (!sizes_.rotary) {
      std::copy_n(x, size, to);
      return;
    }
    const float *cosine = cosine_.data() + position * half, *sine = sine_.data() + position * half;
    for (int64_t i = 0; i < half; ++i) {
      to[i] = x[i] * cosine[i] - x[half + i] * sine[i];
      to[half + i] = x[half + i] * cosine[i] + x[i] * sine[i];
    }
  }

  // qkv [count, (heads + 2 · key heads) · size] → [count, dim]; puts keys and values into the cache.
  at::Tensor attended(DecoderBlock& block, const at::Tensor& qkv) {
    const int64_t size = sizes_.head_size(), count = qkv.size(0), width = qkv.size(1), context = sizes_.context;
    const float* rows = qkv.const_data_ptr<float>();
    float *keys = block.keys.mutable_data_ptr<float>(), *values = block.values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t head = 0; head < key_heads_; ++head) {
        const int64_t at = (head * context + length_ + i) * size;
        turn(rows + i * width + key_at(head), length_ + i, keys + at);
        std::copy_n(rows + i * width + value_at(head), size, values + at);
      }
    at::Tensor out = at::zeros({count, sizes_.dim}, at::kFloat);
    query_.resize(size_t(size));
    weights_.resize(size_t(context));
    for (int64_t i = 0; i < count; ++i)
      for (int64_t head = 0; head < sizes_.heads; ++head) {
        turn(rows + i * width + query_at(head), length_ + i, query_.data());
        const int64_t cached = head / (sizes_.heads / key_heads_) * context * size;
        attend(keys + cached, values + cached, length_ + i + 1,
               out.mutable_data_ptr<float>() + i * sizes_.dim + head * size);
      }
    return out;
  }

  // Adds the mean of `known` values [known, size], weighted by softmax(keys · query / √size), to `out`.
  void attend(const float* keys, const float* values, int64_t known, float* out) {
    const int64_t size = sizes_.head_size();
    float* weights = weights_.data();
    matrix_vector_loops().front()(keys, query_.data(), nullptr, weights, known, size, size);
    const float scale = 1 / std::sqrt(float(size)), most = *std::max_element(weights, weights + known);
    float total = 0;
    for (int64_t t = 0; t < known; ++t) total += weights[t] = std::exp((weights[t] - most) * scale);
    for (int64_t t = 0; t < known; ++t) {
      const float weight = weights[t] / total;
      const float* value = values + t * size;
      for (int64_t k = 0; k < size; ++k) out[k] += weight * value[k];
    }
  }

  void make_angles() {
    const int64_t half = sizes_.head_size() / 2;
    for (int64_t position = 0; position < sizes_.context; ++position)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = double(position) * std::pow(sizes_.rotary_base, -double(i) / double(half));
        cosine_.push_back(float(std::cos(angle)));
        sine_.push_back(float(std::sin(angle)));
      }
  }

  const TransformerSizes sizes_;
  const int64_t key_heads_;
  int64_t length_ = 0;
  at::Tensor tokens_, positions_;
  std::vector<DecoderBlock> blocks_;
  DecoderNorm norm_;
  DecoderLinear output_;
  at::Tensor logits_;
  std::vector<float> cosine_, sine_;  // [context, head size / 2]
  std::vector<float> query_, weights_;
};

}  // namespace

std::unique_ptr<TokenDecoder> make_transformer_decoder(const TransformerSizes& sizes, const ParameterValues& values) {
  return std::make_unique<TransformerDecoder>(sizes, values);
}

}  // namespace convoy
