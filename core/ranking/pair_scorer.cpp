#include "core/ranking/pair_scorer.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace convoy {

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
