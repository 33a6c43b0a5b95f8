// Sizes of gpt and llama, for their blocks (transformer.cpp) and their decoder (transformer_decoder.cpp).
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "core/layers.h"
#include "core/token_decoder.h"

namespace convoy {

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
