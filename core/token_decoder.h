// TokenDecoder: a model of text that continues a sequence token by token, with the keys and values of earlier tokens in
// a cache. Model::decoder creates it for models that generate.
//
// CPU, fp32. It copies no parameter that is already fp32 and contiguous on the CPU; other precisions are converted.
// Logits equal those of the model's blocks up to rounding, since their products run in another order.
// Threads: one at a time; products of a large model use the intra-op threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace convoy {

// The whole value of a parameter, by its canonical name. Throws Error(config) if there is none.
using ParameterValues = std::function<at::Tensor(const std::string& name)>;

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

}  // namespace convoy
