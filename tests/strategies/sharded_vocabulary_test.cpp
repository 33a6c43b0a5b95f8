// Embeddings sharded by rows, outputs sharded by classes, and their losses and ranks, compared with whole ones.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "core/base/error.h"
#include "core/model.h"
#include "strategies/tensor/sharded_layers.h"
#include "tests/strategies/sharded_pair.h"

namespace convoy::testing {
namespace {

constexpr int64_t words = 13, dim = 6;  // uneven shares for 2, 3 and 4 ranks

at::Tensor ids(at::IntArrayRef shape, const std::string& name, int64_t bound = words) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_uniform(out, random_key(2, name), 0, 0, static_cast<double>(bound));
  return out.floor().to(at::kLong);
}

// ids → embedding → logits over the same table.
Build language(LinearOptions::Cut cut, bool bias) {
  return [=](Layers& layers) -> Forward {
    const Layer tokens = layers.embedding("tokens", words, dim, {});
    LinearOptions options = with_cut(cut);
    options.bias = bias;
    options.tied_to = layers.name("tokens.weight");
    const Layer out = layers.linear("out", dim, words, options);
    return [=](const at::Tensor& x) { return out->forward(tokens->forward(x).tanh()); };
  };
}

class ShardedVocabularyTest : public ::testing::TestWithParam<int> {};

TEST_P(ShardedVocabularyTest, CrossEntropyAndRankOfShardedLogits) {
  on_ranks(GetParam(), {}, language(LinearOptions::Cut::column, true), [](Pair& pair) {
    pair.expect_values();
    const at::Tensor input = ids({5, 4}, "input"), target = ids({5, 4}, "target");
    const at::Tensor weight = normal({5, 4}, "weight");
    TensorList losses, ranks, logits;
    for (Side* side : {&pair.whole, &pair.cut}) {
      const at::Tensor out = side->run(input);
      losses.push_back(side->layers->cross_entropy(out, target));
      ranks.push_back(side->layers->target_rank(out, target));
      logits.push_back(side->layers->gathered(out));
      // A loss that the model computes from all logits, besides the one from the layers.
      torch::autograd::backward({(losses.back() * weight).sum() + logits.back().pow(2).sum()}, {});
    }
    EXPECT_TRUE(losses[1].allclose(losses[0], 1e-12, 1e-12));
    EXPECT_TRUE(logits[1].allclose(logits[0], 1e-12, 1e-12));
    EXPECT_TRUE(ranks[1].equal(ranks[0]));
    pair.expect_gradients();
  });
}

TEST_P(ShardedVocabularyTest, ATiedLayerWithoutAnOptionReturnsAllLogits) {
  on_ranks(GetParam(), {}, language(LinearOptions::Cut::none, false), [](Pair& pair) {
    for (Side* side : {&pair.whole, &pair.cut}) {
      const at::Tensor out = side->run(ids({5, 4}, "input"));
      EXPECT_EQ(out.size(-1), words);
      torch::autograd::backward({out.pow(2).sum()}, {});
    }
    pair.expect_gradients();
  });
}

TEST_P(ShardedVocabularyTest, SmallTablesAreNotSharded) {
  const Build build = [](Layers& layers) -> Forward {
    const Layer small = layers.embedding("small", 3, dim, {});
    LinearOptions options = with_cut(LinearOptions::Cut::column);
    options.bias = false;
    options.tied_to = layers.name("small.weight");
    const Layer out = layers.linear("out", dim, 3, options);
    return [=](const at::Tensor& x) { return out->forward(small->forward(x).tanh()); };
  };
  on_ranks(GetParam(), {}, build, [](Pair& pair) {
    EXPECT_EQ(pair.cut.store->by_name.at("block.small.weight")->held.empty(),
              pair.group->size() == 1 || pair.group->size() > 3);
    const at::Tensor input = ids({5, 4}, "input", 3);
    TensorList losses;
    for (Side* side : {&pair.whole, &pair.cut}) {
      losses.push_back(side->layers->cross_entropy(side->run(input), input));
      torch::autograd::backward({losses.back().sum()}, {});
    }
    EXPECT_TRUE(losses[1].allclose(losses[0], 1e-12, 1e-12));
    pair.expect_gradients();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedVocabularyTest, ::testing::Values(1, 2, 3, 4));

TEST(ShardedVocabulary, SupportsExtremeLogits) {
  run_ranks({"local", 2}, [](Communicator& world) {
    const CommunicatorPtr group = world.split(0, world.rank(), {"tensor", {}});
    const DimensionShard cut{4, 1, group->rank(), group->size()};
    const auto loss = [&](const at::Tensor& all, int64_t target) {
      const at::Tensor own = all.view({1, 4}).narrow(-1, cut.share().first, 2);
      return sharded_cross_entropy(own, at::full({1}, target, at::kLong), cut, group).item<double>();
    };
    EXPECT_DOUBLE_EQ(loss(at::tensor({1000.0, 0.0, -1000.0, 0.0}, at::kDouble), 0), 0);
    EXPECT_DOUBLE_EQ(loss(at::tensor({1000.0, 0.0, -1000.0, 0.0}, at::kDouble), 2), 2000);
    EXPECT_TRUE(std::isnan(loss(at::tensor({0.0, 0.0, 0.0, std::nan("")}, at::kDouble), 0)));
    const at::Tensor ties = at::tensor({0.5, 2.0, 0.5, 3.0}, at::kDouble).view({1, 4});
    const at::Tensor own = ties.narrow(-1, cut.share().first, 2);
    for (const auto& [target, rank] : {std::pair<int64_t, int64_t>{3, 0}, {1, 1}, {0, 3}, {2, 3}})
      EXPECT_EQ(sharded_target_rank(own, at::full({1}, target, at::kLong), cut, group).item<int64_t>(), rank);
  });
}

TEST(ShardedVocabulary, RefusesIdsOutOfRange) {
  on_ranks(2, {}, language(LinearOptions::Cut::column, true), [](Pair& pair) {
    EXPECT_THROW(pair.cut.run(at::full({2, 3}, words, at::kLong)), Error);
    const at::Tensor out = pair.cut.run(at::zeros({2, 3}, at::kLong));
    EXPECT_THROW(pair.cut.layers->cross_entropy(out, at::full({2, 3}, -1, at::kLong)), Error);
  });
}

}  // namespace
}  // namespace convoy::testing
