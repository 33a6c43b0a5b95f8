// HR and NDCG by hand, ties against the held-out item.
#include "core/metrics/model_metrics.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"

namespace convoy {
namespace {

TEST(Ranking, CountsScoresNotBelow) {
  const auto scores = at::tensor({3.f, 1.f, 2.f, 0.f, /**/ 1.f, 2.f, 3.f, 0.f, /**/ 1.f, 1.f, 0.f, 1.f}).view({3, 4});
  EXPECT_TRUE(at::equal(rank_of_first(scores), at::tensor({0, 2, 2}, at::kLong)));
  const auto members = at::stack({scores, -scores});
  EXPECT_TRUE(at::equal(rank_of_first(members), at::tensor({0, 2, 2, 3, 1, 3}, at::kLong).view({2, 3})));
}

Batch full_ranking(const at::Tensor& excluded) {
  Batch batch;
  batch.rows = excluded.size(0);
  batch.tensors = {{"excluded", excluded.to(at::kBool)}};
  return batch;
}

TEST(Ranking, IgnoresExcludedCandidates) {
  const auto scores = at::tensor({1.f, 2.f, 3.f, 0.f}).view({1, 4});
  const Batch batch = full_ranking(at::tensor({0, 0, 1, 0}).view({1, 4}));
  EXPECT_EQ(rank_of_first(scores_of_new_items({scores}, batch)[0]).item<int64_t>(), 1);
  EXPECT_EQ(scores[0][2].item<float>(), 3.f) << "the model's own output is changed";
  const auto members = at::stack({scores, -scores});
  EXPECT_TRUE(at::equal(rank_of_first(scores_of_new_items({members}, batch)[0]), at::tensor({1, 1}).view({2, 1})));
  EXPECT_EQ(rank_of_first(scores_of_new_items({scores}, Batch())[0]).item<int64_t>(), 2) << "sampled ranking";
}

TEST(Ranking, ExcludedItemsAreNotNegatives) {
  const Batch batch = full_ranking(at::tensor({0, 1, 0, 0, 1, 0}).view({2, 3}));
  Examples examples;
  examples.prediction = at::ones({2, 3});
  EXPECT_TRUE(at::equal(examples_of_new_items(examples, batch).weight,
                        at::tensor({1.f, 0.f, 1.f, 1.f, 0.f, 1.f}).view({2, 3})));
  examples.weight = at::tensor({1.f, 2.f});
  EXPECT_TRUE(at::equal(examples_of_new_items(examples, batch).weight,
                        at::tensor({1.f, 0.f, 1.f, 2.f, 0.f, 2.f}).view({2, 3})));
  EXPECT_TRUE(at::equal(examples_of_new_items(examples, Batch()).weight, examples.weight));
}

TEST(Ranking, AFullRankingNeedsAScoreForEachItem) {
  const Batch batch = full_ranking(at::zeros({2, 3}));
  try {
    scores_of_new_items({at::ones({2, 4}), at::ones({2, 3, 1})}, batch);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("[2, 4], [2, 3, 1]"), std::string::npos) << error.what();
  }
}

TEST(Ranking, RanksNaNLast) {
  const float nan = std::nanf("");
  EXPECT_EQ(rank_of_first(at::tensor({nan, 1.f, 2.f}).view({1, 3})).item<int64_t>(), 2);
  EXPECT_EQ(rank_of_first(at::tensor({1.f, nan, 0.f}).view({1, 3})).item<int64_t>(), 1);
}

TEST(Ranking, MetricsAreSumsOverRows) {
  const auto metrics = ranking_metrics(at::tensor({0, 2, 9, 10}, at::kLong), {1, 10});
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_EQ(metrics[0].name, "hr@1");
  EXPECT_EQ(metrics[0].sum.item<double>(), 1);
  EXPECT_EQ(metrics[2].name, "hr@10");
  EXPECT_EQ(metrics[2].sum.item<double>(), 3);
  EXPECT_EQ(metrics[2].weight.item<double>(), 4);
  EXPECT_EQ(metrics[3].name, "ndcg@10");
  EXPECT_NEAR(metrics[3].sum.item<double>(), 1 + 1 / std::log2(4.0) + 1 / std::log2(11.0), 1e-12);
  const auto none = ranking_metrics(at::empty({0}, at::kLong), {10});
  EXPECT_EQ(none[0].sum.item<double>(), 0);
  EXPECT_EQ(none[0].weight.item<double>(), 0);
}

}  // namespace
}  // namespace convoy
