// Plans of pipeline and model_parallel: ranks, devices, refusals before the start, and costs.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "strategies/plans/catalogue.h"
#include "tests/support/errors.h"
#include "tests/support/one_host.h"
#include "tests/support/torch/equivalence.h"

namespace convoy::testing {
namespace {

JobPlan plan(const std::string& strategy, const std::string& options, const Topology& topology, int ranks,
             const std::string& device = "cpu") {
  RunConfig config = test_config({strategy, options}, {});
  config.device = device;
  PlanRequest request;
  request.ranks = ranks;
  return strategy_entry(strategy).plan(config, topology, request).jobs.at(0);
}

std::string refused(const std::string& strategy, const std::string& options, int ranks, int blocks = 0) {
  return error_of([&] {
    const JobPlan job = plan(strategy, options, one_host(4), ranks);
    ModelDescription model;
    for (int i = 0; i < blocks; ++i) model.blocks.push_back({str("block", i), 1, 0, 0, 0, 0, 1, {}});
    if (blocks > 0) strategy_entry(strategy).check(job, model);
  });
}

TEST(PipelinePlan, RanksFollowTheListOrTheMachine) {
  EXPECT_EQ(plan("pipeline", "", one_host(4), 0).mesh.degree("pipeline"), 2);
  EXPECT_EQ(plan("pipeline", ", stages: [1, 2, 3]", one_host(4), 0).mesh.degree("pipeline"), 3);
  EXPECT_EQ(plan("pipeline", ", schedule: interleaved, stages: [1, 2, 3, 1]", one_host(4), 0).ranks.size(), 2u);
  const JobPlan job = plan("pipeline", "", one_host(4, 3), 0, "auto");
  EXPECT_EQ(job.mesh.degree("pipeline"), 3);
  EXPECT_EQ(job.backend, "nccl");
  EXPECT_EQ(job.mesh.degree("data"), 1);
}

TEST(PipelinePlan, Refusals) {
  EXPECT_TRUE(has(refused("pipeline", ", stages: [1, 2]", 3), "strategy.stages"));
  EXPECT_TRUE(has(refused("pipeline", ", virtual: 2", 2), "strategy.virtual"));
  EXPECT_TRUE(has(refused("pipeline", ", schedule: interleaved, stages: [1, 2, 3]", 0), "strategy.stages"));
  EXPECT_TRUE(has(refused("pipeline", ", micro_batches: 17", 2), "strategy.micro_batches"));
  EXPECT_TRUE(has(refused("pipeline", ", stages: [0-1, 3]", 2), "a gap"));
  // Checks that need the model.
  EXPECT_EQ(refused("pipeline", "", 3, 3), "no error");
  EXPECT_TRUE(has(refused("pipeline", "", 4, 3), "strategy.stages: ")) << refused("pipeline", "", 4, 3);
  EXPECT_TRUE(has(refused("pipeline", ", schedule: interleaved", 2, 3), "the model has 3 blocks"));
  EXPECT_TRUE(has(refused("pipeline", ", stages: [1, 1]", 2, 3), "every block needs a stage"));
}

TEST(PipelinePlan, NamesKeysAtTheirLocation) {
  const std::string error = refused("pipeline", ", stages: [0-1, 3]", 2);
  EXPECT_TRUE(has(error, "run.yaml:9:")) << error;
}

TEST(ModelParallelPlan, Devices) {
  const JobPlan job = plan("model_parallel", ", devices: [cores:2, 'cores:0-1']", one_host(4), 0);
  ASSERT_EQ(job.ranks.size(), 1u);
  ASSERT_EQ(job.ranks[0].devices.size(), 2u);
  EXPECT_EQ(job.ranks[0].devices[0].cores, std::vector<int>{2});
  EXPECT_EQ(job.ranks[0].devices[1].cores, (std::vector<int>{0, 1}));
  EXPECT_EQ(job.ranks[0].cores, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(job.ranks[0].threads, 3);
  EXPECT_EQ(job.backend, "local");
  // Placement divides the rank's cores.
  EXPECT_EQ(plan("model_parallel", "", one_host(4), 0).ranks[0].devices.size(), 2u);
  EXPECT_TRUE(plan("model_parallel", "", one_host(4), 0).ranks[0].cores.empty());
  EXPECT_EQ(plan("model_parallel", "", one_host(1), 0).ranks[0].devices.size(), 1u);
  const JobPlan gpus = plan("model_parallel", "", one_host(4, 3), 0, "auto");
  ASSERT_EQ(gpus.ranks[0].devices.size(), 3u);
  EXPECT_EQ(gpus.ranks[0].devices[2].gpu, 2);
  const JobPlan placed =
      plan("model_parallel", ", placement: [{blocks: 0, device: cuda:1}, {blocks: 1-2, device: cuda:0}]",
           one_host(4, 2), 1, "auto");
  EXPECT_EQ(placed.ranks[0].devices[0].gpu, 1);
}

TEST(ModelParallelPlan, ReportsDevicesWithoutBlocks) {
  const auto warnings = [](const std::string& options) {
    RunConfig config = test_config({"model_parallel", options}, {});
    config.device = "cpu";
    return strategy_entry("model_parallel").plan(config, one_host(4), {}).warnings;
  };
  const std::string placed = ", placement: [{blocks: 0-2, device: cores:2}]";
  EXPECT_TRUE(
      has(join(warnings(", devices: [cores:1, cores:2, cores:3]" + placed), "\n"), "cores:1, cores:3 have no block"));
  EXPECT_TRUE(warnings(", devices: [cores:2]" + placed).empty());
}

TEST(ModelParallelPlan, Refusals) {
  EXPECT_TRUE(has(refused("model_parallel", "", 2), "launch.ranks"));
  EXPECT_TRUE(has(refused("model_parallel", ", devices: [cores:0, cores:4]", 1), "strategy.devices.1"));
  EXPECT_TRUE(has(refused("model_parallel", ", devices: [cuda:0]", 1), "strategy.devices"));
  EXPECT_TRUE(has(refused("model_parallel", ", placement: [{blocks: 1-2, device: cores:0}]", 1), "a gap"));
  EXPECT_TRUE(has(refused("model_parallel", ", devices: [cores:0, cores:1, cores:2]", 1, 2), "the model has 2 blocks"));
  EXPECT_TRUE(has(refused("model_parallel", ", placement: [{blocks: 0-2, device: cores:0}]", 1, 2), "2 blocks"));
  RunConfig config = test_config({"model_parallel", ", devices: [cores:0, cores:1]"}, {});
  config.launch.cores_per_rank = 1;
  EXPECT_TRUE(has(error_of([&] { strategy_entry("model_parallel").plan(config, one_host(4), {}); }),
                  "launch.cores_per_rank: is 1, and strategy.devices names 2 cores"));
}

TEST(PipelineCost, CountsBoundariesTiesAndLiveMicroBatches) {
  JobPlan job = plan("pipeline", ", stages: [1, 2, 1], micro_batches: 4", one_host(4), 0);
  ModelDescription model;
  model.element_bytes = 8;
  for (int block = 0; block < 4; ++block) model.blocks.push_back({str("block", block), 100, 10, 0, 64, 500, 50, {}});
  model.blocks[3].ties = {{"block0.weight", 0, 40}};
  const std::vector<RankCost> costs = strategy_entry("pipeline").cost(job, model);
  ASSERT_EQ(costs.size(), 3u);
  const double norm = 2 * 2.0 / 3 * 24, tie = 40 * 8;
  EXPECT_DOUBLE_EQ(costs[0].bytes_sent_per_step, 16 * 64 + norm + tie);
  EXPECT_DOUBLE_EQ(costs[1].bytes_sent_per_step, 2 * 16 * 64 + norm);
  EXPECT_DOUBLE_EQ(costs[2].bytes_sent_per_step, 16 * 64 + norm + 2 * 16 + tie);
  EXPECT_DOUBLE_EQ(costs[0].parameter_bytes, 800);
  EXPECT_DOUBLE_EQ(costs[1].parameter_bytes, 1600);
  EXPECT_DOUBLE_EQ(costs[2].parameter_bytes, 800 + tie);  // its copy
  EXPECT_DOUBLE_EQ(costs[2].moment_bytes, 2 * (800 + tie));
  EXPECT_DOUBLE_EQ(costs[1].buffer_bytes, 160);
  // Four rows a micro-batch; three, two and one micro-batches are live.
  EXPECT_DOUBLE_EQ(costs[0].activation_bytes, 4 * (3 * 500));
  EXPECT_DOUBLE_EQ(costs[1].activation_bytes, 4 * (2 * 1000 + 2 * 64));
  EXPECT_DOUBLE_EQ(costs[2].activation_bytes, 4 * (1 * 500 + 2 * 64));
  EXPECT_DOUBLE_EQ(costs[0].messages_per_step, 4 + 2 + 1);
}

TEST(PipelineCost, SupportsUnequalMicroBatchesAndStages) {
  const auto held = [](const std::string& options, const std::vector<int64_t>& saved, int64_t whatever, size_t rank) {
    ModelDescription model;
    for (const int64_t bytes : saved) {
      model.blocks.push_back({str("block", model.blocks.size()), 100, 0, 0, 0, bytes, 50, {}});
      model.blocks.back().saved_bytes = whatever;
    }
    const JobPlan job = plan("pipeline", options, one_host(4), 0);
    return strategy_entry("pipeline").cost(job, model).at(rank).activation_bytes;
  };
  // All five are live: the whole batch of 16 rows once, and five times the memory that does not depend on rows.
  EXPECT_DOUBLE_EQ(held(", schedule: gpipe, stages: [1, 1], micro_batches: 5", {100, 10}, 0, 0), 16 * 100);
  EXPECT_DOUBLE_EQ(held(", schedule: gpipe, stages: [1, 1], micro_batches: 5", {100, 10}, 7, 0), 16 * 100 + 5 * 7);
  // F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 …: three micro-batches of stage 0 and two of stage 2 are live, later four
  // and one.
  const std::string interleaved = ", schedule: interleaved, virtual: 2, stages: [1, 1, 1, 1], micro_batches: 4";
  EXPECT_DOUBLE_EQ(held(interleaved, {10, 1, 100, 1}, 0, 0), 4 * (3 * 10 + 2 * 100));
  EXPECT_DOUBLE_EQ(held(interleaved, {100, 1, 10, 1}, 0, 0), 4 * (4 * 100 + 1 * 10));
}

}  // namespace
}  // namespace convoy::testing
