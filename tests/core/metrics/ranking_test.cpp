// HR and NDCG by hand, ties against the held-out item.
#include "core/metrics/model_metrics.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/error.h"
#include "core/communicator.h"
#include "core/metrics/accumulator.h"

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

// Computes the metrics by their definitions, item by item. Sorts all items of a row by score; a held-out item comes
// after other items of equal score.
struct ByHand {
  std::vector<int64_t> hits;  // places of held-out items, from 0
  int64_t held_out;

  ByHand(const at::Tensor& scores, int64_t held_out) : held_out(held_out) {
    std::vector<int64_t> order(size_t(scores.numel()));
    std::iota(order.begin(), order.end(), 0);
    const auto score = [&](int64_t i) { return scores[i].item<double>(); };
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      if (score(a) != score(b)) return score(a) > score(b);
      return (a >= held_out) > (b >= held_out);
    });
    for (size_t place = 0; place < order.size(); ++place)
      if (order[place] < held_out) hits.push_back(int64_t(place));
  }
  double value(const std::string& name, int64_t k) const {
    double found = 0, gain = 0, best = 0, precision = 0;
    for (int64_t place : hits) {
      if (place >= k) break;
      ++found;
      gain += 1 / std::log2(double(place) + 2);
      precision += found / double(place + 1);
    }
    for (int64_t i = 0; i < std::min(k, held_out); ++i) best += 1 / std::log2(double(i) + 2);
    if (name == "hr") return found > 0 ? 1 : 0;
    if (name == "recall") return found / double(held_out);
    if (name == "precision") return found / double(k);
    if (name == "mrr") return found > 0 ? 1 / double(hits[0] + 1) : 0;
    if (name == "map") return precision / double(std::min(k, held_out));
    return gain / best;
  }
};

TEST(Ranking, MetricsOfSeveralHeldOutItemsFollowTheirDefinitions) {
  const at::Tensor scores = (at::randn({2, 7, 40}) * 3).round();  // two members; with ties
  Batch batch;
  batch.rows = 7;
  const at::Tensor held_out = at::tensor({1, 2, 3, 6, 1, 4, 2}, at::kLong);
  batch.tensors = {{"held_out", held_out}};
  const std::vector<std::string> names{"hr", "ndcg", "recall", "precision", "mrr", "map"};
  const std::vector<Metric> metrics = ranking_metrics(scores, batch, names, {1, 5, 20, 100});
  ASSERT_EQ(metrics.size(), 24u);
  EXPECT_EQ(metrics[7].name, "ndcg@5");
  size_t index = 0;
  for (const int64_t k : {1, 5, 20, 100})
    for (const std::string& name : names) {
      const Metric& metric = metrics[index++];
      for (int64_t member = 0; member < 2; ++member) {
        double expected = 0;
        for (int64_t row = 0; row < 7; ++row)
          expected += ByHand(scores[member][row], held_out[row].item<int64_t>()).value(name, k);
        EXPECT_NEAR(metric.sum[member].item<double>(), expected, 1e-9) << metric.name;
        EXPECT_EQ(metric.weight[member].item<double>(), 7);
      }
    }
}

TEST(Ranking, OneHeldOutItemNeedsNoCounts) {
  const at::Tensor scores = at::tensor({3.f, 1.f, 2.f, 0.f, /**/ 1.f, 2.f, 3.f, 0.f}).view({2, 4});
  Batch batch;
  batch.rows = 2;
  const auto metrics = ranking_metrics(scores, batch, {"hr", "mrr", "map", "recall"}, {3});
  EXPECT_EQ(metrics[0].sum.item<double>(), 2);
  EXPECT_NEAR(metrics[1].sum.item<double>(), 1 + 1.0 / 3, 1e-12);
  EXPECT_NEAR(metrics[2].sum.item<double>(), 1 + 1.0 / 3, 1e-12);
  EXPECT_EQ(metrics[3].sum.item<double>(), 2);
}

TEST(Ranking, RanksNaNLastAmongSeveral) {
  const float nan = std::nanf("");
  const at::Tensor held_out = at::tensor({2}, at::kLong);
  EXPECT_TRUE(at::equal(ranks_of_held_out(at::tensor({nan, 1.f, 2.f, 0.f}).view({1, 4}), held_out),
                        at::tensor({1, 3}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::equal(ranks_of_held_out(at::tensor({3.f, 1.f, nan, 0.f}).view({1, 4}), held_out),
                        at::tensor({1, 2}, at::kLong).view({1, 2})));
}

TEST(Ranking, CoverageAndGiniCountTheListsOfAllRows) {
  Batch batch;
  batch.rows = 3;
  // Items 0 … 3, the held-out item first. Lists of two: {0, 1}, {0, 2}, {0} (nothing else is left).
  batch.tensors = {{"item", at::tensor({3, 0, 1, 2, /**/ 0, 1, 2, 3, /**/ 0, 1, 2, 3}, at::kLong).view({3, 4})},
                   {"excluded", at::zeros({3, 4}, at::kBool)}};
  const float no = -std::numeric_limits<float>::infinity();
  const at::Tensor scores =
      at::tensor({0.f, 9.f, 8.f, 1.f, /**/ 9.f, 1.f, 8.f, 0.f, /**/ 1.f, no, no, no}).view({3, 4});
  const auto metrics = ranking_metrics(scores, batch, {"coverage", "gini"}, {1, 2});
  EXPECT_TRUE(at::equal(metrics[0].sum, at::tensor({3, 0, 0, 0}, at::kDouble)));
  EXPECT_TRUE(at::equal(metrics[2].sum, at::tensor({3, 1, 1, 0}, at::kDouble)));
  EXPECT_TRUE(metrics[3].lower_is_better);
  MetricAccumulator sums;
  sums.add(metrics);
  const auto values = sums.reduce(*make_single_communicator());
  EXPECT_EQ(values.at("coverage@1").value, 0.25);
  EXPECT_EQ(values.at("coverage@2").value, 0.75);
  EXPECT_EQ(values.at("gini@1").value, 0.75) << "one of four items has everything";
  // Sorted 0, 1, 1, 3: (−3·0 − 1·1 + 1·1 + 3·3) ÷ (4·5).
  EXPECT_NEAR(values.at("gini@2").value, 0.45, 1e-12);
  EXPECT_TRUE(values.at("gini@2").members.empty());
  try {
    ranking_metrics(scores, Batch{{}, 3}, {"coverage"}, {1});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("data.ranking: full"), std::string::npos) << error.what();
  }
}

TEST(Ranking, CountsEachMemberSeparately) {
  Batch batch;
  batch.rows = 2;
  batch.tensors = {{"item", at::tensor({0, 1, 2, /**/ 1, 0, 2}, at::kLong).view({2, 3})},
                   {"excluded", at::zeros({2, 3}, at::kBool)}};
  const at::Tensor scores = at::stack({at::tensor({3.f, 2.f, 1.f, /**/ 1.f, 3.f, 2.f}).view({2, 3}),
                                       at::tensor({1.f, 2.f, 3.f, /**/ 3.f, 1.f, 2.f}).view({2, 3})});
  MetricAccumulator sums;
  sums.add(ranking_metrics(scores, batch, {"coverage"}, {1}));
  const auto value = sums.reduce(*make_single_communicator()).at("coverage@1");
  ASSERT_EQ(value.members.size(), 2u);
  EXPECT_NEAR(value.members[0], 1.0 / 3, 1e-12);
  EXPECT_NEAR(value.members[1], 2.0 / 3, 1e-12);
  EXPECT_NEAR(value.value, 0.5, 1e-12);
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
