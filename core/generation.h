// Texts of a model: TokenDecoder continues a sequence of tokens, and generation draws a text from it.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace convoy {

// --- TokenDecoder: a model of text that continues a sequence token by token ---

// Returns the whole value of a parameter, by its canonical name. Throws Error(config) if there is none.
using ParameterValues = std::function<at::Tensor(const std::string& name)>;

// It has the keys and values of earlier tokens in a cache. Model::decoder creates it for models that generate.
//
// CPU, fp32. It copies no parameter that is already fp32 and contiguous on the CPU; other precisions are converted.
// Logits equal those of the model's blocks up to rounding, since their products run in another order.
// Threads: one at a time; products of a large model use the intra-op threads.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  virtual int64_t vocabulary() const = 0;
  virtual int64_t context() const = 0;  // longest sequence
  virtual int64_t length() const = 0;   // tokens in the cache
  virtual void clear() = 0;             // forgets all tokens
  // Appends tokens and returns the logits [vocabulary] after the last one, valid until the next call. At least one
  // token; length() + count ≤ context(). Error(config) for a token outside the vocabulary.
  virtual const float* append(const int64_t* tokens, int64_t count) = 0;
};

// --- Generation: continues a prompt by drawing one token after another from a TokenDecoder ---
//
// `convoy generate` uses it. Draw number n is a function of (seed, n). So equal arguments give equal text on every
// machine whose logits are equal.
// If the decoder's context is full, the newer half of its tokens is read again and the older half is forgotten.

struct GenerationOptions {
  int64_t tokens = 200;    // most tokens to draw
  double temperature = 1;  // divides the logits; 0: always the likeliest token
  int64_t top_k = 0;       // draws among the k likeliest tokens; 0: all
  double top_p = 1;        // draws among the likeliest tokens whose probabilities reach p together
  uint64_t seed = 1;
  int64_t stop = -1;  // the token that ends the text, itself not visited; -1: none
};

// The tokens that may be drawn, with probabilities that sum to 1. Sorted by token; with top_k or top_p likeliest first,
// and equal ones by token.
struct TokenChoice {
  int64_t token = 0;
  double probability = 0;
};
std::vector<TokenChoice> token_choices(const float* logits, int64_t vocabulary, const GenerationOptions& options);

// Draws a token: the first choice at which the sum of probabilities exceeds `uniform`, which is in [0, 1).
int64_t drawn_token(const std::vector<TokenChoice>& choices, double uniform);

// Calls `visit` with each token as soon as it is drawn; ends when `visit` returns false. `prompt` has at least one
// token. If it is longer than the context, only its end is read. Returns the number of tokens drawn.
int64_t generate(TokenDecoder& decoder, const std::vector<int64_t>& prompt, const GenerationOptions& options,
                 const std::function<bool(int64_t token)>& visit);

}  // namespace convoy
