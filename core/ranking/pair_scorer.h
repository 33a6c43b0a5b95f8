// PairScorer: scores of many items for each row, from terms that depend on the row alone and terms that depend on the
// item alone. Each term is computed once, instead of once per pair. A model may offer one (Model::pair_scorer).
//
// Call order: row_terms and item_terms in any order → scores of any of the results.
// Threads: row_terms and item_terms: the rank's thread, without gradients. scores: several threads at once, if
// blocks().threads.
// Ownership: a scorer uses the blocks of the model; it is valid until their parameters change.
// Errors: those of the model.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/model_interface.h"

namespace convoy {

class PairScorer {
 public:
  virtual ~PairScorer() = default;

  // Sizes of one call of `scores`: small enough for the caches, large enough to hide the calls.
  struct Blocks {
    int64_t rows = 64;
    int64_t items = 4096;
    bool threads = true;  // several threads may call `scores` at once; false: one call uses all threads
  };
  virtual Blocks blocks() const { return {}; }
  virtual at::ScalarType dtype() const = 0;  // of the scores: float or double

  // `rows`: the per-row fields of an evaluation batch (user, context, user_features). Each result is [B, …].
  virtual TensorList row_terms(const Batch& rows) = 0;
  // ids int64 [N], features [N, F] or undefined. The results are used together and never sliced.
  virtual TensorList item_terms(const at::Tensor& ids, const at::Tensor& features) = 0;
  // Writes the score of each row with each item to `out` [B, N], contiguous, on the CPU. `rows`: ranges of row_terms.
  virtual void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) = 0;
};

}  // namespace convoy
