// ForwardScorer: a PairScorer that calls the model's forward for blocks of rows and items. For models without
// pair_scorer, such as most plugins.
//
// The batch has the fields of an evaluation batch; target is zero. One of the model's outputs has one score for each
// item, [B, N]; those of ensemble members, [members, B, N], are averaged. Threads, errors: those of `forward`.
// Error(config) for outputs without such scores.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/ranking/pair_scorer.h"

namespace convoy {

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
