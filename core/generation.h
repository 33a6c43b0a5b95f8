// Generation: continues a prompt by drawing one token after another from a TokenDecoder.
// `convoy generate` uses it.
//
// Draw number n is a function of (seed, n), so equal arguments give equal text on every machine whose logits are equal.
// If the decoder's context is full, the newer half of its tokens is read again and the older half is forgotten.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/token_decoder.h"

namespace convoy {

struct GenerationOptions {
  int64_t tokens = 200;    // most tokens to draw
  double temperature = 1;  // divides the logits; 0: always the likeliest token
  int64_t top_k = 0;       // draws among the k likeliest tokens; 0: all
  double top_p = 1;        // draws among the likeliest tokens whose probabilities reach p together
  uint64_t seed = 1;
  int64_t stop = -1;  // the token that ends the text, itself not visited; -1: none
};

// The tokens that may be drawn, with probabilities that sum to 1. By top_k and top_p likeliest first, ties by the
// smaller token; else by token.
struct TokenChoice {
  int64_t token = 0;
  double probability = 0;
};
std::vector<TokenChoice> token_choices(const float* logits, int64_t vocabulary, const GenerationOptions& options);

// Draws a token: the first choice at which the sum of probabilities exceeds `uniform`, which is in [0, 1).
int64_t drawn_token(const std::vector<TokenChoice>& choices, double uniform);

// Calls `visit` with each token as soon as it is drawn; ends when it returns false. `prompt` has at least one token; of
// a longer one than the context only the end is read. Returns the number of tokens drawn.
int64_t generate(TokenDecoder& decoder, const std::vector<int64_t>& prompt, const GenerationOptions& options,
                 const std::function<bool(int64_t token)>& visit);

}  // namespace convoy
