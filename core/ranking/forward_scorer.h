// ForwardScorer: a PairScorer for any model, by its forward over blocks of rows and items. For models without a scorer
// of their own, such as plugins.
//
// A batch of it has the fields of the rows, and item, target (zeros) and item_features of the block, as an evaluation
// batch has them. One of the model's outputs has one score for each item, [B, N]; those of ensemble members, [members,
// B, N], are averaged. Threads, errors: those of `forward`. Error(config) for outputs without such scores.
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

  // Few pairs at once: nobody knows how large the activations of a model are.
  Blocks blocks() const override { return {16, 1024, false}; }
  at::ScalarType dtype() const override { return dtype_; }
  TensorList row_parts(const Batch& rows) override;
  TensorList item_parts(const at::Tensor& ids, const at::Tensor& features) override { return {ids, features}; }
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
  TensorList row_parts(const Batch& rows) override;
  TensorList item_parts(const at::Tensor& ids, const at::Tensor& features) override;
  void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) override;

 private:
  std::vector<std::shared_ptr<PairScorer>> members_;
  std::vector<size_t> row_counts_, item_counts_;  // of each member's parts
};

}  // namespace convoy
