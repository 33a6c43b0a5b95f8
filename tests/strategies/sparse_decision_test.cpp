// Choice of sparse embeddings: by size and the optimizer's options, equally in plans and on ranks.
#include "strategies/sparse/sparse_embedding.h"

#include <gtest/gtest.h>

#include "strategies/plans/costs/sparse_cost.h"
#include "strategies/plans/options/sparse_embeddings.h"
#include "tests/support/torch/model_subjects.h"

namespace convoy::testing {
namespace {

constexpr const char* adam = "{name: adam, lr: 1.0e-3}";

RunConfig config_of(int ranks, int64_t rows_each, const std::string& sync = "{}", const std::string& optimizer = adam) {
  Training training;
  training.global_rows = ranks * rows_each;
  training.optimizer = optimizer;
  return test_config({"ddp", ", sync: " + sync, ranks}, training);
}

TableSize table(int64_t rows, int64_t lookups, bool asked = false) {
  TableSize one;
  one.name = "embedding.item.weight";
  one.rows = rows;
  one.lookups = lookups;
  one.asked = asked;
  return one;
}

bool rank_has_rows(const RunConfig& config, int ranks, const TableSize& table) {
  EmbeddingOptions options;
  options.rows = table.asked ? EmbeddingOptions::Rows::rows : EmbeddingOptions::Rows::automatic;
  options.lookups = table.lookups;
  return make_sparse_rule(config, ranks)->applies(table.name, table.rows, options);
}

// configs/ncf_story.yaml: 256 positives a rank, an item and four others each.
TEST(SparseRule, MakesLargeTablesSparseOnTwoFourAndEightRanks) {
  for (const int ranks : {1, 2, 4, 8, 16}) {
    const RunConfig config = config_of(ranks, 256);
    for (const TableSize& one : {table(211261, 1), table(100000, 5)}) {
      EXPECT_TRUE(sparse_decision(config, ranks, one).rows) << one.rows << " on " << ranks;
      EXPECT_TRUE(rank_has_rows(config, ranks, one)) << one.rows << " on " << ranks;
    }
  }
}

TEST(SparseRule, KeepsSmallAndMostlyTouchedTablesDense) {
  const RunConfig few = config_of(2, 16);
  EXPECT_FALSE(sparse_decision(few, 2, table(65535, 1)).rows);
  EXPECT_TRUE(sparse_decision(few, 2, table(65536, 1)).rows);
  // Sequences of 1,024 tokens, 32 of them.
  EXPECT_FALSE(sparse_decision(few, 2, table(100000, 1024)).rows);
  EXPECT_FALSE(rank_has_rows(few, 2, table(100000, 1024)));
  EXPECT_TRUE(sparse_decision(few, 2, table(100000, 1024, true)).rows) << "asked for";
  // 5,000 rows with 5 look-ups each are a quarter of the table; with one more row they exceed it.
  EXPECT_TRUE(sparse_decision(config_of(1, 5000), 1, table(100000, 5)).rows);
  EXPECT_FALSE(sparse_decision(config_of(1, 5001), 1, table(100000, 5)).rows);
  // Gradients of several batches are summed before an update.
  EXPECT_TRUE(sparse_decision(config_of(2, 1000, "{every: 2}"), 2, table(100000, 5)).rows);
  EXPECT_FALSE(sparse_decision(config_of(2, 1000, "{every: 3}"), 2, table(100000, 5)).rows);
}

// Ranks with local updates update only the rows that they touched, at any synchronisation frequency.
TEST(SparseRule, CountsLocalRowsUnderParameterAveraging) {
  const RunConfig apart = config_of(64, 1000, "{what: parameters, every: 64}"), summed = config_of(64, 1000);
  EXPECT_TRUE(sparse_decision(apart, 64, table(100000, 5)).rows);
  EXPECT_TRUE(rank_has_rows(apart, 64, table(100000, 5)));
  EXPECT_FALSE(sparse_decision(summed, 64, table(100000, 5)).rows);
  EXPECT_FALSE(sparse_decision(config_of(64, 1000, "{what: parameters, start_after: 9}"), 64, table(100000, 5)).rows);
  EXPECT_FALSE(sparse_decision(config_of(2, 16, "{what: diloco}"), 2, table(100000, 5, true)).rows);
}

TEST(SparseRule, UsesTheWeightDecayOfTheTablesGroup) {
  const auto key = [](const std::string& optimizer) {
    const SparseDecision decision = sparse_decision(config_of(2, 16, "{}", optimizer), 2, table(100000, 5));
    EXPECT_TRUE(decision.large);
    EXPECT_EQ(decision.rows, decision.key.empty());
    return decision.key;
  };
  EXPECT_EQ(key(adam), "");
  EXPECT_EQ(key("{name: adam, lr: 1.0e-3, weight_decay: 0.1}"), "optimizer.weight_decay");
  EXPECT_EQ(key("{name: adam, lr: 1.0e-3, weight_decay: 0.1, groups: [{match: embedding, weight_decay: 0}]}"), "");
  EXPECT_EQ(key("{name: adam, lr: 1.0e-3, groups: [{match: bias, lr: 0.1}, {match: item, weight_decay: 0.1}]}"),
            "optimizer.groups.1.weight_decay");
}

// Refused before any rank starts, at the key with that value.
TEST(SparseRule, RefusesObstaclesOfTheOptimizerAtTheirKey) {
  const auto key = [](const std::string& more) {
    Subject subject = ranking_subject(true);
    subject.section = "{name: ncf, rows: true}";
    Training training;
    training.optimizer = "{name: adam, lr: 1.0e-3, " + more + "}";
    return refused_key({"ddp", "", 2}, subject, training);
  };
  EXPECT_EQ(key("weight_decay: 0.1"), "optimizer.weight_decay");
  EXPECT_EQ(key("weight_decay: 0.1, groups: [{match: embedding, weight_decay: 0}]"), "nothing is refused");
  EXPECT_EQ(key("weight_decay: 0.1, groups: [{match: embedding.user, weight_decay: 0}]"), "optimizer.weight_decay");
  EXPECT_EQ(key("groups: [{match: embedding.user, weight_decay: 0.1}]"), "optimizer.groups.0.weight_decay");
  EXPECT_EQ(key("groups: [{match: output, weight_decay: 0.1}]"), "nothing is refused");
}

TEST(SparseRule, DoesNotShardTiedTables) {
  GptSizes sizes;
  sizes.rows = true;
  Subject tied = gpt_of(sizes);
  tied.section = "{name: gpt, rows: sharded}";
  EXPECT_EQ(refused_key({"ddp", "", 2}, tied, {}), "model.rows");
  EXPECT_EQ(refused_key({"ddp", "", 1}, tied, {}), "nothing is refused");
  tied.section = "{name: gpt, rows: true}";
  EXPECT_EQ(refused_key({"ddp", "", 2}, tied, {}), "nothing is refused");
  sizes.tied = false;
  Subject free = gpt_of(sizes);
  free.section = "{name: gpt, rows: sharded}";
  EXPECT_EQ(refused_key({"ddp", "", 2}, free, {}), "nothing is refused");
}

TEST(TouchedTable, FitsAPowerLawToItsSamples) {
  TouchedTable zipf;
  zipf.rows = 1000;
  zipf.ids = 100;
  zipf.drawn = {{100, 50}, {400, 100}};  // the square root of ids
  EXPECT_NEAR(zipf.unique(1, 1), 50, 1e-9);
  EXPECT_NEAR(zipf.unique(2, 1), 50 * std::sqrt(2.0), 1e-9);
  EXPECT_NEAR(zipf.unique(2, 8), 200, 1e-9);
  EXPECT_DOUBLE_EQ(zipf.unique(1e6, 1), 1000) << "there are no more";
  EXPECT_DOUBLE_EQ(zipf.unique(0.01, 1), 1);
  TouchedTable even;
  even.rows = even.ids = 1000;
  EXPECT_NEAR(even.unique(1, 1), 1000 * (1 - std::exp(-1.0)), 0.5);
}

}  // namespace
}  // namespace convoy::testing
