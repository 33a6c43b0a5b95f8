// pipeline and model_parallel against single with the same micro-batches: same global batches, fp64, ten AdamW steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "tests/equivalence/expectations.h"

namespace convoy::testing {
namespace {

struct StagesCell {
  std::string strategy;
  std::string options;  // in addition to micro-batches and accumulation
  std::string subject;
  int ranks;
  int every;
  bool clipping;
};

std::string name_of(const StagesCell& cell) {
  std::string name = cell.subject + "_" + cell.strategy + cell.options + "_" + std::to_string(cell.ranks) +
                     "ranks_every" + std::to_string(cell.every) + (cell.clipping ? "_clipped" : "");
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c) && c != '_'; }), name.end());
  return name;
}

Layout layout_of(const StagesCell& cell, int micro = micro_batches) {
  return {cell.strategy, cell.options + common(cell.every, micro), cell.ranks};
}
Layout reference(int every, int micro = micro_batches) { return {"single", common(every, micro), 1}; }

class StagesTest : public ::testing::TestWithParam<StagesCell> {};

TEST_P(StagesTest, EqualsSingle) {
  const StagesCell& cell = GetParam();
  expect_equal(train(layout_of(cell), subject_named(cell.subject), adamw(cell.clipping)),
               reference_of(subject_named(cell.subject), common(cell.every), cell.clipping));
}

// Blocks of each subject, which the stages may not outnumber.
int blocks_of(const std::string& subject) {
  if (subject == "norms") return 2;
  return subject == "mlp" || subject == "dropout" ? 3 : 4;
}

std::vector<StagesCell> stages_cells() {
  std::vector<StagesCell> all;
  const auto add = [&](const std::string& strategy, const std::string& options, const std::string& subject, int ranks) {
    for (const int every : {1, 4})
      for (const bool clipping : {false, true}) all.push_back({strategy, options, subject, ranks, every, clipping});
  };
  for (const std::string subject : {"mlp", "ncf", "convnet", "gpt", "llama", "norms", "dropout"}) {
    for (int ranks = 1; ranks <= blocks_of(subject); ++ranks)
      for (const char* schedule : {"gpipe", "1f1b"})
        add("pipeline", std::string(", schedule: ") + schedule, subject, ranks);
    for (int ranks = 1; 2 * ranks <= blocks_of(subject); ++ranks)
      add("pipeline", ", schedule: interleaved", subject, ranks);
    for (const char* devices : {", devices: [cores:0, cores:1]", ", devices: [cores:0, cores:1, cores:2]"})
      if (std::string(devices).find("cores:2") == std::string::npos || blocks_of(subject) > 2)
        add("model_parallel", devices, subject, 1);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, StagesTest, ::testing::ValuesIn(stages_cells()),
                         [](const auto& info) { return name_of(info.param); });

// More stages than blocks, which the table leaves out, are refused before training.
TEST(Stages, RefuseUnsupportedCombinations) {
  for (const std::string subject : {"mlp", "ncf", "convnet", "gpt", "norms", "dropout"}) {
    const int ranks = blocks_of(subject) + 1;
    EXPECT_THROW(train({"pipeline", common(1, 4), ranks}, subject_named(subject), {}), ConfigError) << subject;
  }
  EXPECT_THROW(train({"pipeline", ", schedule: interleaved" + common(1, 4), 2}, subject_named("mlp"), {}), ConfigError);
  EXPECT_THROW(train({"model_parallel", ", devices: [cores:0, cores:1, cores:2]", 1}, subject_named("norms"), {}),
               ConfigError);
}

TEST(Stages, FollowAListOfBlocks) {
  const Subject subject = gpt_subject();
  const Trajectory whole = train(reference(1), subject, {});
  for (const char* stages : {"[1, 3]", "[3, 1]", "[0-1, 2-3]"})
    expect_equal(train({"pipeline", std::string(", stages: ") + stages + common(1, 4), 2}, subject, {}), whole);
  // The embedding and the output, which share a weight, on one device and the rest on another.
  for (const char* placement :
       {"[{blocks: 0, device: cores:0}, {blocks: 1-2, device: cores:1}, {blocks: 3, device: cores:0}]",
        "[{blocks: 0-2, device: cores:1}, {blocks: 3, device: cores:0}]"})
    expect_equal(train({"model_parallel", std::string(", placement: ") + placement + common(1, 4), 1}, subject, {}),
                 whole);
}

TEST(Stages, MicroBatchesWithoutRows) {
  // Eight micro-batches of three rows at the end of an epoch.
  Training training;
  training.global_rows = 8;
  for (const char* name : {"mlp", "gpt", "ncf"}) {
    const Subject subject = subject_named(name);
    const Trajectory whole = train(reference(1, 8), subject, training);
    for (const char* schedule : {"gpipe", "1f1b"})
      expect_equal(train({"pipeline", std::string(", schedule: ") + schedule + common(1, 8), 3}, subject, training),
                   whole);
    expect_equal(train({"model_parallel", common(1, 8), 1}, subject, training), whole);
  }
}

TEST(Stages, OneMicroBatch) {
  const Subject subject = gpt_subject();
  const Trajectory whole = train(reference(1, 1), subject, {});
  for (const char* schedule : {"gpipe", "1f1b", "interleaved"})
    expect_equal(train({"pipeline", std::string(", schedule: ") + schedule + common(1, 1), 2}, subject, {}), whole);
}

TEST(Stages, TwoRunsAreBitwiseEqual) {
  const StagesCell layouts[] = {{"pipeline", ", schedule: 1f1b", "gpt", 3, 1, true},
                                {"pipeline", ", schedule: interleaved", "gpt", 2, 4, true},
                                {"model_parallel", ", devices: [cores:0, cores:1, cores:2]", "gpt", 1, 1, true}};
  for (const StagesCell& cell : layouts) {
    const Trajectory first = train(layout_of(cell), subject_named(cell.subject), adamw(cell.clipping));
    const Trajectory second = train(layout_of(cell), subject_named(cell.subject), adamw(cell.clipping));
    EXPECT_TRUE(bitwise_equal(first.final, second.final)) << name_of(cell);
    EXPECT_EQ(first.losses, second.losses) << name_of(cell);
  }
}

}  // namespace
}  // namespace convoy::testing
