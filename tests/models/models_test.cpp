// mlp and ncf: sizes, shapes, results; they do not depend on strategy or ranks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/metrics/model_metrics.h"
#include "models/registry.h"
#include "tests/models/building.h"
#include "tests/models/counting_layers.h"

namespace convoy {
namespace {

// Without output_mean and output_deviation, as in checkpoints of earlier versions.
Json mlp_json(std::vector<int64_t> hidden) {
  return {{"hidden", std::move(hidden)}, {"activation", "relu"}, {"dropout", 0.0}};
}

Options mlp_options(std::vector<int64_t> hidden) { return Options(mlp_json(std::move(hidden))); }

Options scaled_mlp_options(double mean, double deviation) {
  Json options = mlp_json({8});
  options["output_mean"] = mean;
  options["output_deviation"] = deviation;
  return Options(options);
}

Options ncf_options(int64_t gmf, int64_t mlp, std::vector<int64_t> hidden) {
  return Options(Json{{"gmf_dim", gmf}, {"mlp_dim", mlp}, {"hidden", hidden}, {"dropout", 0.0}, {"top_k", {10}}});
}

Schema vectors(std::vector<int64_t> features, Field target) {
  Schema schema;
  schema.fields["features"] = {std::move(features), at::kFloat, 0};
  schema.fields["target"] = std::move(target);
  return schema;
}

Schema interactions(int64_t users, int64_t items, int64_t context) {
  Schema schema;
  schema.fields["user"] = {{}, at::kLong, users};
  schema.fields["item"] = {{5}, at::kLong, items};
  schema.fields["target"] = {{5}, at::kFloat, 0};
  if (context > 0) schema.fields["context"] = {{context}, at::kFloat, 0};
  return schema;
}

Batch features(at::Tensor x, at::Tensor y) {
  Batch batch;
  batch.rows = x.size(0);
  batch.tensors = {{"features", std::move(x)}, {"target", std::move(y)}};
  return batch;
}

TEST(Mlp, FlattensAndHasAClassForEachLogit) {
  const auto model = make_mlp(mlp_options({16, 8}), vectors({1, 4, 5}, {{}, at::kLong, 3}));
  EXPECT_EQ(model->blocks(), 3);
  EXPECT_EQ(model->default_loss(), "cross_entropy");
  Plain plain;
  const auto blocks = blocks_of(*model, plain.layers);
  for (int64_t rows : {7, 0}) {
    const Batch batch = features(at::randn({rows, 1, 4, 5}), at::zeros({rows}, at::kLong));
    const auto outputs = forward(*model, blocks, batch);
    EXPECT_EQ(outputs[0].sizes(), (std::vector<int64_t>{rows, 3}));
    const auto metrics = model->metrics(outputs, batch, plain.layers);
    ASSERT_EQ(metrics.size(), 1u);
    EXPECT_EQ(metrics[0].weight.item<double>(), double(rows));
    EXPECT_EQ(metrics[0].sum.item<double>(), double(outputs[0].argmax(1).eq(0).sum().item<int64_t>()));
  }
}

TEST(Mlp, PredictsNumbersInTheShapeOfTheTarget) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{}, {2}, {2, 3}}) {
    const auto model = make_mlp(mlp_options({}), vectors({6}, {shape, at::kFloat, 0}));
    EXPECT_EQ(model->default_loss(), "mse");
    Plain plain;
    std::vector<int64_t> whole{4};
    whole.insert(whole.end(), shape.begin(), shape.end());
    const auto outputs =
        forward(*model, blocks_of(*model, plain.layers), features(at::randn({4, 6}), at::zeros(whole)));
    EXPECT_EQ(outputs[0].sizes(), whole);
  }
}

TEST(Mlp, ScalesPredictedNumbersAndRefusesToScaleClasses) {
  const Schema schema = vectors({6}, {{2}, at::kFloat, 0});
  const Batch batch = features(at::randn({4, 6}), at::zeros({4, 2}));
  const auto outputs = [&](double mean, double deviation) {
    const auto model = make_mlp(scaled_mlp_options(mean, deviation), schema);
    Plain plain;
    return forward(*model, blocks_of(*model, plain.layers), batch)[0];
  };
  EXPECT_TRUE(at::allclose(outputs(500, 0.25), outputs(0, 1) * 0.25 + 500));
  EXPECT_THROW(make_mlp(scaled_mlp_options(500, 1), vectors({6}, {{}, at::kLong, 3})), Error);
}

TEST(Mlp, HasTwentyFiveMillionParameters) {
  const auto model = make_mlp(mlp_options({3072, 3072, 3072, 1024}), vectors({1024}, {{}, at::kLong, 10}));
  CountingLayers layers;
  blocks_of(*model, layers);
  EXPECT_NEAR(double(layers.total()), 25e6, 0.5e6);
}

TEST(Mlp, NamesItsMissingInputs) {
  Schema schema;
  schema.fields["user"] = {{}, at::kLong, 3};
  EXPECT_THROW(make_mlp(mlp_options({}), schema), Error);
  EXPECT_THROW(make_ncf(ncf_options(8, 32, {8}), vectors({3}, {{}, at::kLong, 3})), Error);
}

TEST(Ncf, HasTheDocumentedSize) {
  // GMF 8, MLP 32 a side, 21 context columns, 85 → 32 → 16 → 8, 16 → 1; users and items together 311,261.
  const auto model = make_ncf(ncf_options(8, 32, {32, 16, 8}), interactions(290000, 21261, 21));
  CountingLayers layers;
  blocks_of(*model, layers);
  EXPECT_EQ(layers.total(), 12453873);
}

Batch ncf_batch(int64_t rows, int64_t width, int64_t context) {
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"user", at::randint(0, 20, {rows}, at::kLong)},
                   {"item", at::randint(0, 30, {rows, width}, at::kLong)},
                   {"target", at::zeros({rows, width})}};
  if (context > 0) batch.tensors.emplace_back("context", at::rand({rows, context}));
  return batch;
}

TEST(Ncf, ComputesNeuMf) {
  const auto model = make_ncf(ncf_options(4, 6, {5, 3}), interactions(20, 30, 2));
  Plain plain;
  const auto blocks = blocks_of(*model, plain.layers);
  const Batch batch = ncf_batch(7, 5, 2);
  const at::Tensor scores = forward(*model, blocks, batch)[0];
  ASSERT_EQ(scores.sizes(), (std::vector<int64_t>{7, 5}));

  // The textbook form: every pair alone, the MLP over one concatenation.
  const auto user =
      at::embedding(plain.value("embedding.user.weight"), batch.at("user")).unsqueeze(1).expand({7, 5, 10});
  const auto item = at::embedding(plain.value("embedding.item.weight"), batch.at("item"));
  const auto context = batch.at("context").unsqueeze(1).expand({7, 5, 2});
  const auto input = at::cat({user.slice(-1, 4), context, item.slice(-1, 4)}, -1);
  const auto first = at::cat({plain.value("hidden.0.row.weight"), plain.value("hidden.0.item.weight")}, 1);
  auto h = at::relu(at::linear(input, first, plain.value("hidden.0.row.bias")));
  h = at::relu(at::linear(h, plain.value("hidden.1.linear.weight"), plain.value("hidden.1.linear.bias")));
  const auto all = at::cat({user.slice(-1, 0, 4) * item.slice(-1, 0, 4), h}, -1);
  const auto expected =
      at::linear(all, plain.value("output.linear.weight"), plain.value("output.linear.bias")).squeeze(-1);
  EXPECT_TRUE(at::allclose(scores, expected, 1e-5, 1e-7));
}

// The textbook form again: user features belong to the row like context, item features to each item.
TEST(Ncf, AcceptsFeaturesOfUsersAndItems) {
  Schema schema = interactions(20, 30, 2);
  schema.fields["user_features"] = {{1}, at::kFloat, 0};
  schema.fields["item_features"] = {{5, 3}, at::kFloat, 0};
  const auto model = make_ncf(ncf_options(4, 6, {5}), schema);
  Plain plain;
  const auto blocks = blocks_of(*model, plain.layers);
  Batch batch = ncf_batch(7, 9, 2);  // the width differs from training
  batch.tensors.emplace_back("user_features", at::rand({7, 1}));
  batch.tensors.emplace_back("item_features", at::rand({7, 9, 3}));
  const at::Tensor scores = forward(*model, blocks, batch)[0];
  ASSERT_EQ(scores.sizes(), (std::vector<int64_t>{7, 9}));

  const auto of_each = [](const at::Tensor& of_row) { return of_row.unsqueeze(1).expand({7, 9, of_row.size(1)}); };
  const auto user = of_each(at::embedding(plain.value("embedding.user.weight"), batch.at("user")));
  const auto item = at::embedding(plain.value("embedding.item.weight"), batch.at("item"));
  const auto input = at::cat({user.slice(-1, 4), of_each(batch.at("context")), of_each(batch.at("user_features")),
                              item.slice(-1, 4), batch.at("item_features")},
                             -1);
  const auto first = at::cat({plain.value("hidden.0.row.weight"), plain.value("hidden.0.item.weight")}, 1);
  const auto h = at::relu(at::linear(input, first, plain.value("hidden.0.row.bias")));
  const auto all = at::cat({user.slice(-1, 0, 4) * item.slice(-1, 0, 4), h}, -1);
  const auto expected =
      at::linear(all, plain.value("output.linear.weight"), plain.value("output.linear.bias")).squeeze(-1);
  EXPECT_TRUE(at::allclose(scores, expected, 1e-5, 1e-7));
}

TEST(Ncf, EmbeddingsStartNearZero) {
  const auto model = make_ncf(ncf_options(8, 32, {8}), interactions(2000, 3000, 0));
  Plain plain;
  blocks_of(*model, plain.layers);
  for (const char* name : {"embedding.user.weight", "embedding.item.weight"}) {
    EXPECT_NEAR(plain.value(name).std().item<double>(), 0.01, 2e-4);
    EXPECT_NEAR(plain.value(name).mean().item<double>(), 0, 2e-4);
  }
}

TEST(Ncf, WorksWithEitherHalfAlone) {
  for (const auto& [gmf, mlp] : std::vector<std::pair<int64_t, int64_t>>{{4, 0}, {0, 4}}) {
    const auto model = make_ncf(ncf_options(gmf, mlp, {5}), interactions(20, 30, 0));
    Plain plain;
    const auto scores = forward(*model, blocks_of(*model, plain.layers), ncf_batch(3, 5, 0))[0];
    EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{3, 5}));
    scores.sum().backward();
  }
  EXPECT_THROW(make_ncf(ncf_options(0, 0, {5}), interactions(20, 30, 0)), Error);
  EXPECT_THROW(make_ncf(ncf_options(4, 4, {}), interactions(20, 30, 0)), Error);
}

TEST(Ncf, EvaluatesAnyNumberOfCandidatesAndEmptyShares) {
  const auto model = make_ncf(ncf_options(4, 6, {5}), interactions(20, 30, 2));
  Plain plain;
  const auto blocks = blocks_of(*model, plain.layers);
  for (int64_t rows : {6, 0}) {
    const Batch batch = ncf_batch(rows, 100, 2);
    const auto metrics = model->metrics(forward(*model, blocks, batch), batch, plain.layers);
    ASSERT_EQ(metrics.size(), 2u);
    EXPECT_EQ(metrics[0].name, "hr@10");
    EXPECT_EQ(metrics[0].weight.item<double>(), double(rows));
  }
}

TEST(Ncf, ExcludedItemsAreNotNegatives) {
  const auto model = make_ncf(ncf_options(4, 6, {5}), interactions(20, 30, 0));
  Plain plain;
  Batch batch = ncf_batch(3, 6, 0);
  batch.tensors.emplace_back("excluded", at::tensor({0, 1, 0, 0, 0, 0}).to(at::kBool).expand({3, 6}));
  batch.tensors.emplace_back("weight", at::tensor({1.f, 2.f, 3.f}));
  const auto examples =
      examples_of_new_items(model->examples(forward(*model, blocks_of(*model, plain.layers), batch), batch), batch);
  EXPECT_EQ(examples.weight.sum().item<float>(), 5 * 6.f);
  EXPECT_EQ(examples.weight.select(1, 1).sum().item<float>(), 0.f);
}

}  // namespace
}  // namespace convoy
