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

  // Sizes of one call of `scores`: small enough for the caches, large enough that the calls cost little.
  struct Blocks {
    int64_t rows = 64;
    int64_t items = 4096;
    bool threads = true;  // several threads may call `scores` at once; false: one call uses all threads
  };
  virtual Blocks blocks() const { return {}; }
  virtual at::ScalarType dtype() const = 0;  // dtype of the scores: float or double

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
  std::vector<size_t> row_counts_, item_counts_;  // numbers of each member's terms
};

// PairMlp: scores of pairs of a row and an item. Its first layer is a sum of a term of the row and a term of the item.
// Optionally the product of factors of both is added.
//
//   score(r, i) = bias + Σ_g u[r, g]·v[i, g] + Σ_h w[h]·h_L[h]
//   h_0 = relu(a[r] + b[i]),  h_l = relu(W_l·h_{l−1} + c_l)
//
// The hidden activations of a few dozen pairs stay in the caches. A score does not depend on the sizes of blocks or on
// threads. Operations per pair: 2·(G + Σ_l in_l·out_l + H_L), plus H_0.
// CPU, float and double. Threads: const after construction.
class PairMlp {
 public:
  struct Layer {
    at::Tensor weight, bias;  // [out, in]; [out] or undefined
  };
  struct Rows {
    at::Tensor factors, sums;  // u [B, G], a [B, H_0]; undefined: there is none
  };
  struct Items {
    at::Tensor factors, sums;  // transposed_factors(v), b [N, H_0]; undefined: there is none
  };

  // `layers`: the hidden layers after the first one. `output`: w [H_L]; undefined: no MLP. `bias`: [1] or undefined.
  // Copies the weights.
  PairMlp(const std::vector<Layer>& layers, const at::Tensor& output, const at::Tensor& bias, at::ScalarType dtype);

  // Factors of items [N, G] in the layout of `scores`: [G, N rounded up].
  static at::Tensor transposed_factors(const at::Tensor& factors);

  // out [B, N], contiguous.
  void scores(const Rows& rows, const Items& items, const at::Tensor& out) const;

 private:
  template <class T>
  void add_mlp(const at::Tensor& rows, const at::Tensor& items, T* out) const;

  struct TransposedLayer {
    at::Tensor weight, bias;  // [in, out rounded up]; [out rounded up]
    int64_t in = 0, out = 0;
  };
  std::vector<TransposedLayer> layers_;
  at::Tensor output_;
  double bias_ = 0;
  int64_t width_ = 0;  // outputs of the widest hidden layer
};

}  // namespace convoy
