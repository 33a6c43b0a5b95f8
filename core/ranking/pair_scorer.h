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
#include <functional>
#include <memory>
#include <string>
#include <vector>

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

// ForwardScorer: a PairScorer that calls the model's forward for blocks of rows and items. For models without
// pair_scorer, such as most plugins.
//
// The batch has the fields of an evaluation batch; target is zero. One of the model's outputs has one score for each
// item, [B, N]; those of ensemble members, [members, B, N], are averaged. Threads, errors: those of `forward`.
// Error(config) for outputs without such scores.
class ForwardScorer : public PairScorer {
 public:
  using Forward = std::function<TensorList(const Batch&)>;
  ForwardScorer(Forward forward, at::ScalarType dtype) : forward_(std::move(forward)), dtype_(dtype) {}

  // Few pairs at once, because the size of the activations is unknown.
  Blocks blocks() const override { return {16, 1024, false}; }
  at::ScalarType dtype() const override { return dtype_; }
  TensorList row_terms(const Batch& rows) override;
  TensorList item_terms(const at::Tensor& ids, const at::Tensor& features) override { return {ids, features}; }
  void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) override;

 private:
  Forward forward_;
  at::ScalarType dtype_;
  std::vector<std::string> row_fields_;
};

// MeanScorer: the mean of the scores of several models, as of an ensemble's members.
class MeanScorer : public PairScorer {
 public:
  explicit MeanScorer(std::vector<std::shared_ptr<PairScorer>> members);  // at least one

  Blocks blocks() const override;
  at::ScalarType dtype() const override { return members_.front()->dtype(); }
  TensorList row_terms(const Batch& rows) override;
  TensorList item_terms(const at::Tensor& ids, const at::Tensor& features) override;
  void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) override;

 private:
  std::vector<std::shared_ptr<PairScorer>> members_;
  std::vector<size_t> row_counts_, item_counts_;  // of each member's terms
};

}  // namespace convoy
