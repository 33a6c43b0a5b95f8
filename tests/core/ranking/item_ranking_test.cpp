// Blocks, caches and threads change nothing: scores and lists equal those of all pairs at once.
#include "core/ranking/item_ranking.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
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

#include "core/ranking/pair_scorer.h"

namespace convoy {
namespace {

struct MlpWeights {
  at::Tensor row_factors, item_factors, row_sums, item_sums, output, bias;
  std::vector<PairMlp::Layer> layers;

  MlpWeights(int64_t rows, int64_t items, int64_t factors, const std::vector<int64_t>& hidden, at::ScalarType dtype)
      : bias(at::randn({1}, dtype)) {
    if (factors > 0) {
      row_factors = at::randn({rows, factors}, dtype);
      item_factors = at::randn({items, factors}, dtype);
    }
    if (hidden.empty()) return;
    row_sums = at::randn({rows, hidden[0]}, dtype);
    item_sums = at::randn({items, hidden[0]}, dtype);
    for (size_t l = 1; l < hidden.size(); ++l)
      layers.push_back({at::randn({hidden[l], hidden[l - 1]}, dtype) / std::sqrt(double(hidden[l - 1])),
                        l % 2 == 0 ? at::Tensor() : at::randn({hidden[l]}, dtype)});
    output = at::randn({hidden.back()}, dtype);
  }

  PairMlp mlp() const { return {layers, output, bias, bias.scalar_type()}; }

  // By operations on all pairs, in double.
  at::Tensor expected() const {
    at::Tensor scores;
    if (row_factors.defined()) scores = row_factors.to(at::kDouble).matmul(item_factors.to(at::kDouble).t());
    if (row_sums.defined()) {
      at::Tensor h = (row_sums.to(at::kDouble).unsqueeze(1) + item_sums.to(at::kDouble)).relu();
      for (const PairMlp::Layer& layer : layers) {
        h = h.matmul(layer.weight.to(at::kDouble).t());
        if (layer.bias.defined()) h = h + layer.bias;
        h = h.relu();
      }
      h = h.matmul(output.to(at::kDouble));
      scores = scores.defined() ? scores + h : h;
    }
    return scores + bias.to(at::kDouble);
  }
};

at::Tensor scores_of(const MlpWeights& weights, int64_t rows, int64_t items) {
  at::Tensor out = at::zeros({rows, items}, weights.bias.options());
  const at::Tensor factors =
      weights.item_factors.defined() ? PairMlp::transposed_factors(weights.item_factors) : at::Tensor();
  weights.mlp().scores({weights.row_factors, weights.row_sums}, {factors, weights.item_sums}, out);
  return out;
}

TEST(PairMlp, EqualsThePlainOperations) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const auto& hidden : std::vector<std::vector<int64_t>>{{}, {7}, {32, 16, 8}, {130, 65}, {33, 100, 5, 3}})
      for (const int64_t factors : {0, 5, 64}) {
        if (hidden.empty() && factors == 0) continue;
        const MlpWeights weights(3, 601, factors, hidden, dtype);
        const at::Tensor expected = weights.expected(), scores = scores_of(weights, 3, 601);
        const double error = (scores.to(at::kDouble) - expected).abs().max().item<double>();
        EXPECT_LT(error, (dtype == at::kFloat ? 1e-5 : 1e-13) * expected.abs().max().item<double>())
            << toString(dtype) << ", " << hidden.size() << " layers, " << factors << " factors";
      }
}

TEST(PairMlp, AScoreDoesNotDependOnItsBlock) {
  const MlpWeights weights(4, 300, 6, {40, 24, 9}, at::kFloat);
  const at::Tensor whole = scores_of(weights, 4, 300);
  MlpWeights part = weights;
  part.row_factors = weights.row_factors.narrow(0, 2, 1);
  part.row_sums = weights.row_sums.narrow(0, 2, 1);
  part.item_factors = weights.item_factors.narrow(0, 257, 11);
  part.item_sums = weights.item_sums.narrow(0, 257, 11);
  EXPECT_TRUE(at::equal(scores_of(part, 1, 11), whole.narrow(0, 2, 1).narrow(1, 257, 11)));
}

TEST(PairMlp, KeepsNaN) {
  MlpWeights weights(1, 3, 0, {4, 4}, at::kFloat);
  weights.item_sums[1].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor scores = scores_of(weights, 1, 3);
  EXPECT_TRUE(std::isnan(scores[0][1].item<float>()));
  EXPECT_TRUE(std::isfinite(scores[0][2].item<float>()));
}

// Scores are products of factors. Counts how often an item's term is computed.
class Products : public PairScorer {
 public:
  Products(at::Tensor users, at::Tensor items, Blocks blocks)
      : users_(std::move(users)), items_(std::move(items)), blocks_(blocks), computed_(size_t(items_.size(0))) {}
  Blocks blocks() const override { return blocks_; }
  at::ScalarType dtype() const override { return users_.scalar_type(); }
  TensorList row_terms(const Batch& rows) override { return {users_.index_select(0, rows.at("user"))}; }
  TensorList item_terms(const at::Tensor& ids, const at::Tensor& features) override {
    for (int64_t i = 0; i < ids.numel(); ++i) ++computed_[size_t(ids[i].item<int64_t>())];
    at::Tensor factors = items_.index_select(0, ids);
    if (features.defined()) factors = factors + features;
    return {factors};
  }
  void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) override {
    out.copy_(rows[0].matmul(items[0].t()));
  }
  const std::vector<int>& computed() const { return computed_; }

 private:
  at::Tensor users_, items_;
  Blocks blocks_;
  std::vector<int> computed_;
};

Batch rows_of_users(const std::vector<int64_t>& users) {
  Batch batch;
  batch.rows = int64_t(users.size());
  batch.tensors = {{"user", at::tensor(users, at::kLong)}};
  return batch;
}

// Small whole numbers, so that there are ties and sums are exact.
at::Tensor whole_numbers(int64_t rows, int64_t columns) { return (at::randn({rows, columns}) * 2).round(); }

// By sorting all scores: by score, then by id.
std::vector<int64_t> sorted_ids(const at::Tensor& scores, int64_t k, const std::vector<int32_t>& seen) {
  std::vector<int64_t> ids(size_t(scores.numel()));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int64_t a, int64_t b) { return scores[a].item<float>() > scores[b].item<float>(); });
  ids.erase(std::remove_if(ids.begin(), ids.end(),
                           [&](int64_t id) { return std::binary_search(seen.begin(), seen.end(), int32_t(id)); }),
            ids.end());
  ids.resize(size_t(k), -1);
  return ids;
}

TEST(ItemRanking, ListsEqualASortOfAllScores) {
  const at::Tensor users = whole_numbers(9, 3), items = whole_numbers(157, 3);
  const std::vector<int64_t> wanted{4, 0, 8, 4, 2};
  std::vector<std::vector<int32_t>> seen{{0, 1, 2, 155, 156}, {}, {40}, {63, 64, 65}, {}};
  seen[4].resize(150);
  std::iota(seen[4].begin(), seen[4].end(), 3);  // leaves 7 items
  std::vector<ItemRanking::Seen> ranges;
  ranges.reserve(seen.size());
  for (const auto& ids : seen) ranges.emplace_back(ids.data(), ids.data() + ids.size());
  for (const PairScorer::Blocks blocks : {PairScorer::Blocks{64, 4096, true}, PairScorer::Blocks{2, 50, true},
                                          PairScorer::Blocks{3, 64, false}, PairScorer::Blocks{1, 1, true}}) {
    Products products(users, items, blocks);
    ItemRanking ranking(products, 157);
    for (const int64_t k : {1, 10, 64, 65, 100, 157}) {  // longer lists are merged
      const TopItems top = ranking.best(rows_of_users(wanted), k, ranges);
      for (int64_t row = 0; row < 5; ++row) {
        const at::Tensor scores = items.matmul(users[wanted[size_t(row)]]);
        const std::vector<int64_t> expected = sorted_ids(scores, k, seen[size_t(row)]);
        EXPECT_TRUE(at::equal(top.items[row], at::tensor(expected, at::kLong)))
            << "k " << k << ", row " << row << ": " << top.items[row];
        EXPECT_EQ(top.counts[row].item<int64_t>(), std::min(k, 157 - int64_t(seen[size_t(row)].size())));
        EXPECT_EQ(top.scores[row][0].item<float>(), scores[expected[0]].item<float>());
      }
      if (k > 7) {
        EXPECT_TRUE(std::isnan(top.scores[4][7].item<float>())) << "no item";
      }
    }
    EXPECT_TRUE(at::equal(ranking.scores(rows_of_users(wanted)),
                          users.index_select(0, at::tensor(wanted, at::kLong)).matmul(items.t())));
  }
}

TEST(ItemRanking, KMayExceedTheCatalogue) {
  Products products(whole_numbers(1, 2), whole_numbers(5, 2), {});
  const TopItems top = ItemRanking(products, 5).best(rows_of_users({0}), 50);
  EXPECT_EQ(top.items.size(1), 5);
  EXPECT_EQ(top.counts[0].item<int64_t>(), 5);
}

TEST(ItemRanking, ComputesTermsOnceWhileTheyFit) {
  const auto computed = [](int64_t bytes) {
    Products products(whole_numbers(4, 2), whole_numbers(10, 2), {64, 2, true});
    ItemRanking ranking(products, 10, {}, bytes);
    for (int batch = 0; batch < 3; ++batch) ranking.best(rows_of_users({0, 1}), 2);
    return products.computed();
  };
  EXPECT_EQ(computed(ItemRanking::default_cache), std::vector<int>(10, 1));
  EXPECT_EQ(computed(0), std::vector<int>(10, 3));
  const int64_t two_strips = 2 * 2 * 2 * int64_t(sizeof(float));
  EXPECT_EQ(computed(two_strips), (std::vector<int>{1, 1, 1, 1, 3, 3, 3, 3, 3, 3}));
}

TEST(ItemRanking, AScoreThatIsNoNumberIsInNoList) {
  at::Tensor items = whole_numbers(4, 2);
  items[1].fill_(std::numeric_limits<double>::quiet_NaN());
  Products products(whole_numbers(1, 2), items, {});
  const TopItems top = ItemRanking(products, 4).best(rows_of_users({0}), 4);
  EXPECT_EQ(top.counts[0].item<int64_t>(), 3);
  EXPECT_FALSE(top.items[0].eq(1).any().item<bool>());
}

TEST(FullRankingScores, FollowTheOrderOfTheBatch) {
  const at::Tensor users = whole_numbers(3, 2), items = whole_numbers(4, 2), features = whole_numbers(4, 2);
  Products products(users, items, {});
  Batch batch = rows_of_users({2, 0});
  const at::Tensor order = at::tensor({2, 0, 1, 3, /**/ 3, 0, 1, 2}, at::kLong).view({2, 4});
  batch.tensors.emplace_back("item", order);
  EXPECT_FALSE(full_ranking_scores(products, batch).defined()) << "sampled candidates";
  batch.tensors.emplace_back("excluded", at::zeros({2, 4}, at::kBool));
  const at::Tensor all = users.index_select(0, batch.at("user")).matmul(items.t());
  EXPECT_TRUE(at::equal(full_ranking_scores(products, batch), all.gather(1, order)));

  batch.tensors.emplace_back("item_features",
                             at::stack({features.index_select(0, order[0]), features.index_select(0, order[1])}));
  const at::Tensor with_features = users.index_select(0, batch.at("user")).matmul((items + features).t());
  EXPECT_TRUE(at::equal(full_ranking_scores(products, batch), with_features.gather(1, order)));
  batch.tensors.back().second[1][2].add_(1);
  EXPECT_FALSE(full_ranking_scores(products, batch).defined()) << "features that differ between rows";

  batch.tensors.pop_back();
  batch.tensors[1].second = order + 1;
  EXPECT_FALSE(full_ranking_scores(products, batch).defined()) << "an id that is no place in the list";
}

}  // namespace
}  // namespace convoy
