// ddp against single: same global batches, fp64, ten AdamW steps.
#include <gtest/gtest.h>

#include "tests/equivalence/expectations.h"

namespace convoy::testing {
namespace {

struct ReplicasCell {
  const char* subject;
  int ranks;
  int every;
  bool clipping;
};

std::string name_of(const ReplicasCell& cell) {
  return std::string(cell.subject) + "_" + std::to_string(cell.ranks) + "ranks_every" + std::to_string(cell.every) +
         (cell.clipping ? "_clipped" : "");
}

Layout ddp(const ReplicasCell& cell, const std::string& more = "") {
  // Buckets of a few parameters, so that these small models have several.
  return {"ddp",
          ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006, sync: {every: " + std::to_string(cell.every) + "}" + more,
          cell.ranks};
}

class ReplicasTest : public ::testing::TestWithParam<ReplicasCell> {};

TEST_P(ReplicasTest, DdpEqualsSingle) {
  const ReplicasCell cell = GetParam();
  const Subject subject = subject_named(cell.subject);
  Training training = adamw(cell.clipping);
  const Trajectory split = train(ddp(cell), subject, training);

  // Batch norm uses a rank's share, so the reference trains on the same shares. Running means are not compared: the
  // reference's follow from all shares, and those of ddp from rank 0's share.
  const bool shares = subject.name == "norms" || subject.name == "convnet";
  training.parts = shares ? cell.ranks : 1;
  const std::string every = std::to_string(cell.every * training.parts);
  const Trajectory whole = train({"single", ", sync: {every: " + every + "}", 1}, subject, training);

  expect_equal(split, whole, !shares);
}

std::vector<ReplicasCell> replicas_cells() {
  std::vector<ReplicasCell> all;
  for (const char* subject : {"mlp", "pairs", "norms", "dropout", "tied", "gpt", "llama", "convnet"})
    for (int ranks : {1, 2, 3, 4})
      for (int every : {1, 4})
        for (bool clipping : {false, true}) all.push_back({subject, ranks, every, clipping});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, ReplicasTest, ::testing::ValuesIn(replicas_cells()),
                         [](const auto& info) { return name_of(info.param); });

// With statistics over all ranks' rows the reference trains on the whole batch, and its running means are equal too.
TEST(Replicas, SynchronisedBatchNormEqualsTheWholeBatch) {
  for (const char* name : {"norms", "convnet"}) {
    for (int ranks : {1, 2, 3}) {
      const ReplicasCell cell{name, ranks, 1, true};
      const Training training = adamw(cell.clipping);
      const Trajectory split = train(ddp(cell, ", batch_norm: sync"), subject_named(cell.subject), training);
      const Trajectory whole = train({}, subject_named(cell.subject), training);
      const Difference worst = difference(split.final, whole.final);
      EXPECT_LE(worst.worst, tolerance) << name << " on " << ranks << ": " << worst.key;
      EXPECT_NEAR(split.evaluated, whole.evaluated, tolerance * 10);
    }
  }
}

TEST(Replicas, SynchronisedBatchNormWithEmptyShares) {
  const ReplicasCell cell{"norms", 4, 1, false};
  Training training = adamw(cell.clipping);
  training.global_rows = 3;
  const Trajectory split = train(ddp(cell, ", batch_norm: sync"), subject_named(cell.subject), training);
  const Trajectory whole = train({}, subject_named(cell.subject), training);
  const Difference worst = difference(split.final, whole.final);
  EXPECT_LE(worst.worst, tolerance) << worst.key;
}

// Micro-batch j is part j of the global batch on any rank: batch norm and dropout get the same rows.
TEST(Replicas, MicroBatchesDoNotDependOnTheNumberOfRanks) {
  for (const char* name : {"norms", "dropout", "pairs"}) {
    for (int ranks : {1, 2, 3}) {
      const ReplicasCell cell{name, ranks, 1, true};
      const Training training = adamw(cell.clipping);
      const Trajectory split =
          train(ddp(cell, ", batch_norm: sync, micro_batches: 3"), subject_named(cell.subject), training);
      const Trajectory whole = train({"single", ", micro_batches: 3", 1}, subject_named(cell.subject), training);
      const Difference worst = difference(split.final, whole.final);
      EXPECT_LE(worst.worst, tolerance) << name << " on " << ranks << ": " << worst.key;
      EXPECT_LE(difference(split.gradients, whole.gradients).worst, tolerance) << name;
    }
  }
}

TEST(Replicas, MicroBatchesChangeNoGradient) {
  const ReplicasCell cell{"tied", 2, 1, true};
  const Trajectory slices =
      train({"single", ", micro_batches: 4", 1}, subject_named(cell.subject), adamw(cell.clipping));
  const Trajectory whole = train({}, subject_named(cell.subject), adamw(cell.clipping));
  const Difference worst = difference(slices.final, whole.final);
  EXPECT_LE(worst.worst, tolerance) << worst.key;
}

TEST(Replicas, TwoRunsAreBitwiseEqual) {
  for (const char* name : {"norms", "tied"}) {
    const ReplicasCell cell{name, 3, 1, true};
    const Trajectory first = train(ddp(cell), subject_named(cell.subject), adamw(cell.clipping));
    const Trajectory second = train(ddp(cell), subject_named(cell.subject), adamw(cell.clipping));
    EXPECT_TRUE(bitwise_equal(first.final, second.final)) << name;
    EXPECT_EQ(first.losses, second.losses) << name;
  }
}

TEST(Replicas, OverlapChangesNothing) {
  const ReplicasCell cell{"tied", 3, 1, true};
  const Trajectory early = train(ddp(cell, ", overlap: true"), subject_named(cell.subject), adamw(cell.clipping));
  for (const char* more : {", overlap: false", ", overlap: auto"}) {
    const Trajectory other = train(ddp(cell, more), subject_named(cell.subject), adamw(cell.clipping));
    EXPECT_TRUE(bitwise_equal(early.final, other.final)) << more;
  }
}

TEST(Replicas, RanksWithoutRowsTakePart) {
  const ReplicasCell cell{"pairs", 4, 1, true};
  Training training = adamw(cell.clipping);
  training.global_rows = 3;
  const Trajectory split = train(ddp(cell), subject_named(cell.subject), training);
  const Trajectory whole = train({}, subject_named(cell.subject), training);
  const Difference worst = difference(split.final, whole.final);
  EXPECT_LE(worst.worst, tolerance) << worst.key;
}

}  // namespace
}  // namespace convoy::testing
