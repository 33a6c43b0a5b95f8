// fsdp against single: same global batches, fp64, ten AdamW steps; and activation checkpointing against none.
#include <gtest/gtest.h>

#include "tests/equivalence/expectations.h"

namespace convoy::testing {
namespace {

struct ShardedCell {
  std::string subject;
  std::string shard;
  int ranks;
  int every;
  bool clipping;
  std::string more = "";  // options
};

std::string name_of(const ShardedCell& cell) {
  return cell.subject + "_" + cell.shard + "_" + std::to_string(cell.ranks) + "ranks_every" +
         std::to_string(cell.every) + (cell.clipping ? "_clipped" : "");
}
std::string text_of(const ShardedCell& cell) { return name_of(cell) + cell.more; }

Training training_of(const ShardedCell& cell) {
  Training training;
  training.optimizer = std::string("{name: adamw, lr: 3.0e-3, eps: 1.0e-5, weight_decay: 0.1, ") +
                       (cell.clipping ? "clip_norm: 0.3, " : "") +
                       "groups: [{match: bias, weight_decay: 0}, {match: norm, lr: 1.0e-3}]}";
  return training;
}

Layout fsdp(const ShardedCell& cell) {
  return {"fsdp", ", shard: " + cell.shard + ", sync: {every: " + std::to_string(cell.every) + "}" + cell.more,
          cell.ranks};
}

// Compares the cell with single. With `batch_norm: local` the reference trains on the ranks' shares. Running means are
// then not compared: the reference's follow from all shares, and those of fsdp from rank 0's share.
void hold(const ShardedCell& cell, Training training, const std::string& reference = "") {
  const Subject subject = subject_named(cell.subject);
  const bool normalises = cell.subject == "norms" || cell.subject == "convnet";
  const bool shares = normalises && cell.more.find("batch_norm: sync") == std::string::npos;
  const Trajectory split = train(fsdp(cell), subject, training);
  training.parts = shares ? cell.ranks : 1;
  const std::string every = std::to_string(cell.every * training.parts);
  const Trajectory whole = train({"single", ", sync: {every: " + every + "}" + reference, 1}, subject, training);

  const std::string text = text_of(cell);
  EXPECT_TRUE(bitwise_equal(split.initial, whole.initial)) << text;
  const Difference worst =
      difference(split.final, whole.final, shares ? std::vector<std::string>{"buffer/"} : std::vector<std::string>{});
  EXPECT_LE(worst.worst, tolerance) << text << ": " << worst.key;
  const Difference gradient = difference(split.gradients, whole.gradients);
  EXPECT_LE(gradient.worst, tolerance * 10) << text << ": " << gradient.key;
  ASSERT_EQ(split.losses.size(), whole.losses.size());
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(split.losses[i], whole.losses[i], tolerance * 10) << text;
  ASSERT_EQ(split.norms.size(), whole.norms.size()) << text;
  for (size_t i = 0; i < whole.norms.size(); ++i)
    EXPECT_NEAR(split.norms[i] / whole.norms[i], 1, tolerance * 10) << text;
  if (!shares) {
    EXPECT_NEAR(split.evaluated, whole.evaluated, tolerance * 10) << text;
  }
  // Models that did not change would prove nothing.
  EXPECT_GT(difference(whole.final, whole.initial).worst, 3e-3) << text;
}

class ShardedTest : public ::testing::TestWithParam<ShardedCell> {};

TEST_P(ShardedTest, FsdpEqualsSingle) { hold(GetParam(), training_of(GetParam())); }

std::vector<ShardedCell> sharded_cells() {
  std::vector<ShardedCell> all;
  for (const char* subject : {"mlp", "pairs", "norms", "dropout", "tied", "foreign", "gpt", "llama", "convnet"})
    for (const char* shard : {"optimizer", "gradients", "parameters"})
      for (int ranks : {1, 2, 3, 4})
        for (const auto& [every, clipping] : {std::pair{1, true}, std::pair{4, false}})
          all.push_back({subject, shard, ranks, every, clipping});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, ShardedTest, ::testing::ValuesIn(sharded_cells()),
                         [](const auto& info) { return name_of(info.param); });

TEST(Sharded, OptionsChangeNoResult) {
  for (const char* subject : {"gpt", "foreign"})
    for (const char* more : {", reshard_after_forward: false", ", units: tensors", ", overlap: false"})
      for (int ranks : {2, 3}) {
        const ShardedCell cell{subject, "parameters", ranks, 1, true, more};
        hold(cell, training_of(cell));
      }
}

// Shards of shards: a data axis of two divides the shards of a tensor group of two.
TEST(Sharded, WorksWithinATensorGroup) {
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    for (const char* subject : {"gpt", "llama", "tied", "foreign"})
      for (const char* more : {"", ", recompute: blocks", ", sequence_parallel: true"}) {
        const ShardedCell cell{subject, shard, 4, 2, true, more};
        const Training training = training_of(cell);
        Layout layout = fsdp(cell);
        layout.strategy = "hybrid";
        layout.options += ", mesh: {data: {degree: 2, how: fsdp}, tensor: 2}";
        const Trajectory split = train(layout, subject_named(subject), training);
        const Trajectory whole = train({"single", ", sync: {every: 2}", 1}, subject_named(subject), training);
        EXPECT_TRUE(bitwise_equal(split.initial, whole.initial)) << text_of(cell);
        const Difference worst = difference(split.final, whole.final);
        EXPECT_LE(worst.worst, tolerance) << text_of(cell) << ": " << worst.key;
        const Difference gradient = difference(split.gradients, whole.gradients);
        EXPECT_LE(gradient.worst, tolerance * 10) << text_of(cell) << ": " << gradient.key;
      }
}

// The same sums in the same order: the time of gathering and freeing has no effect.
TEST(Sharded, GatheringChangesNoBit) {
  const ShardedCell plain{"gpt", "parameters", 3, 2, true};
  const Trajectory first = train(fsdp(plain), subject_named("gpt"), training_of(plain));
  for (const char* more : {"", ", reshard_after_forward: false", ", overlap: false", ", overlap: true"}) {
    ShardedCell cell = plain;
    cell.more = more;
    const Trajectory other = train(fsdp(cell), subject_named("gpt"), training_of(cell));
    EXPECT_TRUE(bitwise_equal(first.final, other.final)) << more;
    EXPECT_EQ(first.losses, other.losses) << more;
  }
}

TEST(Sharded, RanksWithoutRowsTakePart) {
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    for (const char* subject : {"pairs", "gpt"}) {
      const ShardedCell cell{subject, shard, 4, 1, true};
      Training training = training_of(cell);
      training.global_rows = 3;
      hold(cell, training);
    }
}

TEST(Sharded, MicroBatchesAndSynchronisedBatchNorm) {
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    for (const char* subject : {"norms", "convnet", "tied"})
      for (int ranks : {2, 3}) {
        const ShardedCell cell{subject, shard, ranks, 2, true, ", micro_batches: 3, batch_norm: sync"};
        hold(cell, training_of(cell), ", micro_batches: 3");
      }
}

TEST(Sharded, RecomputationChangesNoResult) {
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    for (const char* subject : {"tied", "foreign", "gpt", "convnet"}) {
      const ShardedCell cell{subject, shard, 2, 2, true, ", recompute: blocks, batch_norm: sync"};
      hold(cell, training_of(cell));
    }
  const ShardedCell some{"gpt", "parameters", 3, 1, true, ", recompute: [embedding, blocks.1], micro_batches: 2"};
  hold(some, training_of(some), ", micro_batches: 2");
}

// Blocks run again on the same rows with the same draws, without side effects: one rank gets the same bits. On several
// ranks, recomputation changes the order of gradients and so their positions in buckets: sums differ in the last digit.
TEST(Recompute, ChangesNoBit) {
  for (const std::string subject : {"mlp", "norms", "dropout", "tied", "foreign", "gpt", "convnet"}) {
    const ShardedCell cell{subject, "", 1, 1, true};
    const auto twice = [&](Layout layout) {
      layout.options += ", recompute: blocks";
      return train(layout, subject_named(subject), training_of(cell));
    };
    const Layout single{"single", ", micro_batches: 2", 1}, ddp{"ddp", ", batch_norm: sync", 3};
    const Trajectory kept = train(single, subject_named(subject), training_of(cell)), again = twice(single);
    EXPECT_TRUE(bitwise_equal(kept.final, again.final)) << subject << ": " << difference(kept.final, again.final).key;
    EXPECT_EQ(kept.losses, again.losses) << subject;
    EXPECT_EQ(kept.norms, again.norms) << subject;
    const Difference worst = difference(train(ddp, subject_named(subject), training_of(cell)).final, twice(ddp).final);
    EXPECT_LE(worst.worst, tolerance) << subject << ": " << worst.key;
  }
}

TEST(Sharded, TwoRunsAreBitwiseEqual) {
  for (const char* shard : {"optimizer", "gradients", "parameters"}) {
    const ShardedCell cell{"gpt", shard, 3, 1, true};
    const Trajectory first = train(fsdp(cell), subject_named("gpt"), training_of(cell));
    const Trajectory second = train(fsdp(cell), subject_named("gpt"), training_of(cell));
    EXPECT_TRUE(bitwise_equal(first.final, second.final)) << shard;
    EXPECT_EQ(first.losses, second.losses) << shard;
  }
}

}  // namespace
}  // namespace convoy::testing
