// Scores of all items from the terms of rows and items equal the forward of each pair.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "core/base/json.h"
#include "core/ranking/item_ranking.h"
#include "models/registry.h"
#include "tests/models/building.h"

namespace convoy {
namespace {

constexpr int64_t users = 7, items = 300, rows = 5;

struct NcfCase {
  std::string name;
  int64_t gmf, mlp;
  std::vector<int64_t> hidden;
  int64_t context = 0, user_features = 0, item_features = 0;
};

Batch full_batch(const NcfCase& sizes, at::ScalarType dtype) {
  Batch batch;
  batch.rows = rows;
  TensorList order;
  for (int64_t row = 0; row < rows; ++row) order.push_back(at::randperm(items, at::kLong));
  const at::Tensor item = at::stack(order);
  batch.tensors = {{"user", at::tensor({3, 0, 6, 3, 1}, at::kLong)}, {"item", item}};
  batch.tensors.emplace_back("excluded", at::zeros({rows, items}, at::kBool));
  if (sizes.context > 0) batch.tensors.emplace_back("context", at::randn({rows, sizes.context}, dtype));
  if (sizes.user_features > 0)
    batch.tensors.emplace_back("user_features", at::randn({rows, sizes.user_features}, dtype));
  if (sizes.item_features > 0) {
    const at::Tensor features = at::randn({items, sizes.item_features}, dtype);
    batch.tensors.emplace_back("item_features",
                               features.index_select(0, item.reshape({-1})).view({rows, items, sizes.item_features}));
  }
  return batch;
}

ModelPtr model_of(const NcfCase& sizes) {
  Schema schema;
  schema.fields["user"] = {{}, at::kLong, users};
  schema.fields["item"] = {{5}, at::kLong, items};
  schema.fields["target"] = {{5}, at::kFloat, 0};
  if (sizes.context > 0) schema.fields["context"] = {{sizes.context}, at::kFloat, 0};
  if (sizes.user_features > 0) schema.fields["user_features"] = {{sizes.user_features}, at::kFloat, 0};
  if (sizes.item_features > 0) schema.fields["item_features"] = {{5, sizes.item_features}, at::kFloat, 0};
  return make_ncf(Options(Json{{"gmf_dim", sizes.gmf},
                               {"mlp_dim", sizes.mlp},
                               {"hidden", sizes.hidden},
                               {"dropout", 0.0},
                               {"rows", false},
                               {"top_k", {10}}}),
                  schema);
}

TEST(NcfScorer, EqualsTheForwardOfEachPair) {
  const std::vector<NcfCase> cases{{"both", 8, 16, {24, 12, 6}},
                                   {"factors alone", 9, 0, {}},
                                   {"mlp alone, one layer", 0, 5, {7}},
                                   {"all numbers", 4, 8, {16, 8}, 3, 2, 4},
                                   {"item features", 0, 8, {16, 8}, 0, 0, 1}};
  for (const NcfCase& sizes : cases)
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      at::NoGradGuard no_grad;
      Plain plain(dtype);
      const ModelPtr model = model_of(sizes);
      const std::vector<BlockPtr> blocks = blocks_of(*model, plain.layers);
      for (const BlockPtr& block : blocks)
        for (at::Tensor& parameter : block->parameters()) parameter.normal_(0, 0.5);
      const Batch batch = full_batch(sizes, dtype);
      const auto scorer = model->pair_scorer(blocks);
      ASSERT_TRUE(scorer) << sizes.name;
      const at::Tensor scores = full_ranking_scores(*scorer, batch), expected = forward(*model, blocks, batch)[0];
      ASSERT_TRUE(scores.defined()) << sizes.name;
      const double error = (scores - expected).abs().max().item<double>();
      EXPECT_LT(error, (dtype == at::kFloat ? 1e-5 : 1e-13) * expected.abs().max().item<double>()) << sizes.name;
      EXPECT_GT(expected.std().item<double>(), 0.01) << sizes.name << ": nothing to compare";
    }
}

TEST(NcfScorer, RefusesLayersThatAreNoWholeMatrix) {
  at::NoGradGuard no_grad;
  Plain plain;
  const NcfCase sizes{"both", 8, 16, {24, 12}};
  const ModelPtr model = model_of(sizes);
  std::vector<BlockPtr> blocks = blocks_of(*model, plain.layers);
  EXPECT_TRUE(model->pair_scorer(blocks));
  // Keeps only a shard of the weight.
  at::Tensor weight = blocks[2]->named_parameters()["linear.weight"];
  weight.set_data(weight.narrow(0, 0, 6).clone());
  EXPECT_FALSE(model->pair_scorer(blocks));
  blocks.pop_back();
  EXPECT_FALSE(model->pair_scorer(blocks)) << "a part of the model";
}

}  // namespace
}  // namespace convoy
