#include "core/ranking/pair_scorer.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/vectorised.h"
#include "core/tensors/skinny_product.h"

namespace convoy {

// --- PairMlp ---

namespace {

// Items whose terms stay in the L2 cache for all rows of a call, and pairs whose activations do.
constexpr int64_t items_together = 256;
constexpr int64_t pairs_together = 64;

// out [n, width] = relu(row [width] + items [n, width]). NaN remains NaN.
CONVOY_BODY void relu_sums_body(const T* __restrict row, const T* __restrict items, T* __restrict out, int64_t n,
                                int64_t width) {
  for (int64_t i = 0; i < n; ++i, items += width, out += width)
    for (int64_t h = 0; h < width; ++h) {
      const T sum = row[h] + items[h];
      out[h] = sum < 0 ? T(0) : sum;
    }
}

// out [n] += rows [n, width] · weights [width]. One sum per lane; adds the lanes in a fixed order.
CONVOY_BODY void add_dots_body(const T* __restrict rows, const T* __restrict weights, T* __restrict out, int64_t n,
                               int64_t width) {
  constexpr int64_t lanes = 8;
  for (int64_t i = 0; i < n; ++i, rows += width) {
    T sums[lanes] = {};
    int64_t h = 0;
    for (; h + lanes <= width; h += lanes)
      for (int64_t l = 0; l < lanes; ++l) sums[l] += rows[h + l] * weights[h + l];
    for (int64_t l = 0; h < width; ++h, ++l) sums[l] += rows[h] * weights[h];
    out[i] += ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  }
}

#define CONVOY_PAIR_MLP_LOOPS(T)                                                                       \
  CONVOY_VECTORISED void relu_sums(const T* row, const T* items, T* out, int64_t n, int64_t width) {   \
    relu_sums_body(row, items, out, n, width);                                                         \
  }                                                                                                    \
  CONVOY_VECTORISED void add_dots(const T* rows, const T* weights, T* out, int64_t n, int64_t width) { \
    add_dots_body(rows, weights, out, n, width);                                                       \
  }

CONVOY_PAIR_MLP_LOOPS(float)
CONVOY_PAIR_MLP_LOOPS(double)

int64_t padded(int64_t width, at::ScalarType dtype) {
  return dtype == at::kDouble ? padded_width<double>(width) : padded_width<float>(width);
}

// [out, in] → [in, out rounded up]; the padding is zero.
at::Tensor transposed(const at::Tensor& matrix, at::ScalarType dtype) {
  const at::Tensor result = at::zeros({matrix.size(1), padded(matrix.size(0), dtype)}, at::TensorOptions(dtype));
  result.narrow(1, 0, matrix.size(0)).copy_(matrix.t());
  return result;
}

}  // namespace

PairMlp::PairMlp(const std::vector<Layer>& layers, const at::Tensor& output, const at::Tensor& bias,
                 at::ScalarType dtype)
    : bias_(bias.defined() ? bias.item<double>() : 0) {
  CONVOY_CHECK(dtype == at::kFloat || dtype == at::kDouble, "scores of type ", toString(dtype));
  if (output.defined()) output_ = output.detach().reshape({-1}).to(dtype).contiguous().clone();
  for (const Layer& layer : layers) {
    TransposedLayer copy{transposed(layer.weight, dtype), {}, layer.weight.size(1), layer.weight.size(0)};
    copy.bias = at::zeros({copy.weight.size(1)}, at::TensorOptions(dtype));
    if (layer.bias.defined()) copy.bias.narrow(0, 0, copy.out).copy_(layer.bias);
    width_ = std::max(width_, copy.out);
    layers_.push_back(std::move(copy));
  }
}

at::Tensor PairMlp::transposed_factors(const at::Tensor& factors) { return transposed(factors, factors.scalar_type()); }

template <class T>
void PairMlp::add_mlp(const at::Tensor& rows, const at::Tensor& items, T* out) const {
  const auto& loops = skinny_loops(T()).front();
  const int64_t count = rows.size(0), catalogue = items.size(0), first_width = items.size(1);
  const int64_t widest = std::max(width_, first_width);
  std::vector<T> here(size_t(pairs_together * widest)), next(size_t(pairs_together * widest));
  const T *const row_sums = rows.const_data_ptr<T>(), *const item_sums = items.const_data_ptr<T>();
  for (int64_t begin = 0; begin < catalogue; begin += items_together)
    for (int64_t row = 0; row < count; ++row)
      for (int64_t item = begin; item < std::min(begin + items_together, catalogue); item += pairs_together) {
        const int64_t n = std::min({pairs_together, begin + items_together - item, catalogue - item});
        relu_sums(row_sums + row * first_width, item_sums + item * first_width, here.data(), n, first_width);
        for (const TransposedLayer& layer : layers_) {
          loops.product(here.data(), layer.weight.const_data_ptr<T>(), layer.bias.const_data_ptr<T>(), next.data(), n,
                        layer.in, layer.out, true);
          here.swap(next);
        }
        add_dots(here.data(), output_.const_data_ptr<T>(), out + row * catalogue + item, n, output_.numel());
      }
}

void PairMlp::scores(const Rows& rows, const Items& items, const at::Tensor& out) const {
  CONVOY_CHECK(out.is_contiguous() && out.dim() == 2, "scores go to a matrix without gaps");
  if (out.numel() == 0) return;
  const int64_t count = out.size(0), catalogue = out.size(1);
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "pair_mlp", [&] {
    auto* const to = out.mutable_data_ptr<scalar_t>();
    if (items.factors.defined()) {
      const std::vector<scalar_t> first(size_t(items.factors.size(1)), scalar_t(bias_));
      skinny_loops(scalar_t())
          .front()
          .product(rows.factors.const_data_ptr<scalar_t>(), items.factors.const_data_ptr<scalar_t>(), first.data(), to,
                   count, items.factors.size(0), catalogue, false);
    } else {
      std::fill_n(to, count * catalogue, scalar_t(bias_));
    }
    if (items.sums.defined()) add_mlp(rows.sums, items.sums, to);
  });
}

// --- ForwardScorer ---

TensorList ForwardScorer::row_terms(const Batch& rows) {
  TensorList terms;
  row_fields_.clear();
  for (const auto& [name, tensor] : rows.tensors) {
    row_fields_.push_back(name);
    terms.push_back(tensor);
  }
  return terms;
}

void ForwardScorer::scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) {
  const at::Tensor &ids = items[0], &features = items[1];
  const int64_t count = out.size(0);
  Batch batch;
  batch.rows = batch.global_rows = batch.nominal_rows = count;
  for (size_t field = 0; field < rows.size(); ++field) batch.tensors.emplace_back(row_fields_[field], rows[field]);
  batch.tensors.emplace_back("item", ids.expand({count, ids.numel()}).contiguous());
  batch.tensors.emplace_back("target", at::zeros(out.sizes(), at::TensorOptions(at::kFloat)));
  if (features.defined())
    batch.tensors.emplace_back("item_features",
                               features.expand({count, features.size(0), features.size(1)}).contiguous());
  const TensorList outputs = forward_(batch);
  std::vector<std::string> shapes;
  for (const at::Tensor& output : outputs) {
    const bool one_each = output.defined() && output.is_floating_point() && output.dim() >= 2 && output.dim() <= 3 &&
                          output.sizes().slice(size_t(output.dim() - 2)) == out.sizes();
    if (one_each) {
      out.copy_(output.dim() == 3 ? output.to(out.scalar_type()).mean(0) : output);
      return;
    }
    shapes.push_back(output.defined() ? convoy::str(output.sizes()) : "undefined");
  }
  throw Error(Failure::config, "recommending needs one score for each item, [rows, items], here ", out.sizes(),
              "; the model's outputs have ", join(shapes, ", "),
              "; let its last block return such scores, or implement Model::pair_scorer");
}

// --- MeanScorer ---

MeanScorer::MeanScorer(std::vector<std::shared_ptr<PairScorer>> members)
    : members_(std::move(members)), row_counts_(members_.size()), item_counts_(members_.size()) {
  CONVOY_CHECK(!members_.empty(), "MeanScorer needs at least one member");
}

PairScorer::Blocks MeanScorer::blocks() const {
  Blocks blocks = members_.front()->blocks();
  for (const auto& member : members_) {
    const Blocks limits = member->blocks();
    blocks = {std::min(blocks.rows, limits.rows), std::min(blocks.items, limits.items),
              blocks.threads && limits.threads};
  }
  return blocks;
}

TensorList MeanScorer::row_terms(const Batch& rows) {
  TensorList all;
  for (size_t i = 0; i < members_.size(); ++i) {
    const TensorList terms = members_[i]->row_terms(rows);
    row_counts_[i] = terms.size();
    all.insert(all.end(), terms.begin(), terms.end());
  }
  return all;
}

TensorList MeanScorer::item_terms(const at::Tensor& ids, const at::Tensor& features) {
  TensorList all;
  for (size_t i = 0; i < members_.size(); ++i) {
    const TensorList terms = members_[i]->item_terms(ids, features);
    item_counts_[i] = terms.size();
    all.insert(all.end(), terms.begin(), terms.end());
  }
  return all;
}

void MeanScorer::scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) {
  const at::Tensor member_scores = at::empty_like(out);
  auto row = rows.begin();
  auto item = items.begin();
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto next_row = row + int64_t(row_counts_[i]), next_item = item + int64_t(item_counts_[i]);
    members_[i]->scores({row, next_row}, {item, next_item}, i == 0 ? out : member_scores);
    if (i > 0) out.add_(member_scores);
    row = next_row;
    item = next_item;
  }
  out.div_(double(members_.size()));
}

}  // namespace convoy
