// Steps that ranks make together, recorded and launched with their collectives. All ranks do so at the same steps or
// none does, and the state equals that of normal steps. Without a GPU (tests/support/torch/rerun_graph.h).
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/base/error.h"
#include "core/registry.h"
#include "models/registry.h"
#include "strategies/common/step/step_graph.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/rerun_graph.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

constexpr int ranks = 2;
constexpr int64_t steps = 20;

struct OfRank {
  std::map<std::string, at::Tensor> state;
  std::vector<double> losses;
  Counted counted;
  std::string report;  // report of the graph
};

struct Asked {
  std::string options;
  std::string graph = "auto";
  int wrong_rank = -1;  // rank whose launches differ
};

Batch share_of(const Subject& subject, int64_t step, int rank) {
  const int64_t rows = subject.data.rows, each = rows / 4 + 1;
  const int64_t begin = (step % 4) * each, count = std::min(rows, begin + each) - begin;
  Batch batch = subject.data.slice(begin + count * rank / ranks, begin + count * (rank + 1) / ranks);
  batch.first_row = count * rank / ranks;
  batch.global_rows = count;
  batch.nominal_rows = each;
  return batch;
}

// Two ranks, 20 steps over 3 full batches and a short one, at rates that change with every step.
std::vector<OfRank> trained(const Subject& subject, const Asked& asked) {
  Training training;
  training.optimizer = "{name: adamw, lr: 1.0e-2, schedule: {name: cosine, warmup: 5 steps}, clip_norm: 0.5}";
  const Layout layout{"ddp", asked.options + ", graph: " + (asked.graph == "always" ? "auto" : asked.graph), ranks};
  const RunConfig config = test_config(layout, training);
  std::vector<OfRank> all(ranks);
  with_ranks(layout, config, [&](const Context& given) {
    OfRank& mine = all[static_cast<size_t>(given.rank)];
    Context context = given;
    context.steps_per_epoch = 4;
    context.total_steps = steps;
    Json section = context.config.strategy.options.json();
    section["graph"] = asked.graph;  // a plan takes `always` on GPUs only
    context.config.strategy.options = Options(section);
    context.add_to_summary = [&mine](const Json& report) {
      if (report.contains("graph")) mine.report = report["graph"].get<std::string>();
    };
    Registry registry;
    register_strategies(registry);
    auto made = registry.strategies.make("ddp", context.config.strategy.options);
    context.make_graph = [&](at::Device) -> std::unique_ptr<DeviceGraph> {
      return std::make_unique<Rerun>(*made, mine.counted, given.rank == asked.wrong_rank ? 1 : 0);
    };
    made->setup(context, subject.model(), subject.loss);
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult done = made->step({share_of(subject, step, given.rank), step, step % 4 == 3});
      at::Tensor sums = at::stack({done.metrics.front().sum, done.metrics.front().weight});
      context.world->all_reduce(sums, ReduceOp::sum, {"loss", {}})->wait();
      mine.losses.push_back((sums[0] / sums[1]).item<double>());
    }
    made->flush();
    mine.state = state_of(*made);
  });
  return all;
}

void expect_equal(const std::vector<OfRank>& graph, const std::vector<OfRank>& plain) {
  for (size_t rank = 0; rank < plain.size(); ++rank) {
    EXPECT_EQ(graph[rank].losses, plain[rank].losses) << "rank " << rank;
    EXPECT_EQ(graph[rank].state.size(), plain[rank].state.size());
    for (const auto& [key, value] : plain[rank].state) {
      ASSERT_EQ(graph[rank].state.count(key), 1u) << key;
      EXPECT_TRUE(at::allclose(graph[rank].state.at(key), value, 0, 0, /*equal_nan=*/true)) << rank << ": " << key;
    }
  }
}

TEST(StepGraphOfRanks, LaunchesEqualSteps) {
  for (const char* options : {"", ", overlap: false, bucket_cap_mb: 0.001, first_bucket_mb: 0.0005",
                              ", sync: {compress: fp16}", ", micro_batches: 2"}) {
    const auto plain = trained(pairs_subject(), {options, "never"});
    const auto graph = trained(pairs_subject(), {options, "always"});
    expect_equal(graph, plain);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(plain[rank].counted.records, 0);
      EXPECT_EQ(graph[rank].counted.records, 1) << options;
      EXPECT_EQ(graph[rank].counted.launches, 11) << options << ": 15 full batches but the first four";
    }
  }
}

// Convolutions with batch norm. Dropout could not be recorded.
Subject norms_alone() {
  Subject subject = convnet_subject();
  subject.model = [] {
    Schema schema;
    schema.fields["features"] = {{2, 8, 8}, at::kFloat, 0};
    schema.fields["target"] = {{}, at::kLong, 5};
    return make_convnet(
        Options(Json{{"channels", {4, 6}}, {"kernel", 3}, {"batch_norm", true}, {"hidden", 10}, {"dropout", 0.0}}),
        schema);
  };
  return subject;
}

TEST(StepGraphOfRanks, RecordsBuffersAndSyncBatchNorm) {
  const std::string options = ", batch_norm: sync, buffers: mean";
  const auto plain = trained(norms_alone(), {options, "never"});
  const auto graph = trained(norms_alone(), {options, "always"});
  expect_equal(graph, plain);
  for (const OfRank& rank : graph) EXPECT_EQ(rank.counted.launches, 11);
}

// The faster of the two varies here; all ranks choose the same one, with the same result.
TEST(StepGraphOfRanks, LaunchesOnAllRanksOrNone) {
  const auto plain = trained(pairs_subject(), {"", "never"});
  const auto either = trained(pairs_subject(), {"", "auto"});
  expect_equal(either, plain);
  EXPECT_EQ(either[0].counted.records, 1);
  EXPECT_EQ(either[1].counted.records, 1);
  EXPECT_EQ(either[0].counted.launches, either[1].counted.launches);

  const auto wrong = trained(pairs_subject(), {"", "auto", 1});
  expect_equal(wrong, plain);
  for (const OfRank& rank : wrong) {
    EXPECT_EQ(rank.counted.launches, 1) << "the one that tried it";
    EXPECT_NE(rank.report.find("operation by operation"), std::string::npos) << rank.report;
  }
  EXPECT_NE(wrong[0].report.find("rank 1: a graph of it leaves"), std::string::npos) << wrong[0].report;
}

TEST(StepGraphOfRanks, ReportsWhyAStepIsNotRecorded) {
  struct Case {
    Subject subject;
    std::string options, why;
  };
  for (const Case& one : {Case{pairs_subject(), ", sync: {every: 2}", "sync.every: 2"},
                          Case{pairs_subject(), ", sync: {every: 2, what: parameters}", "sync.what"},
                          Case{dropout_subject(), "", "dropout"}}) {
    const auto plain = trained(one.subject, {one.options, "never"});
    const auto graph = trained(one.subject, {one.options, "auto"});
    expect_equal(graph, plain);
    for (const OfRank& rank : graph) {
      EXPECT_EQ(rank.counted.records, 0) << one.options;
      EXPECT_NE(rank.report.find(one.why), std::string::npos) << one.options << ": " << rank.report;
    }
    EXPECT_EQ(plain[0].report, "");
  }
}

std::string refusal(const std::string& strategy, const std::string& options, int gpus) {
  Topology topology;
  topology.hosts.push_back({"here", {{0, 0, 0, {0}}, {1, 0, 0, {1}}}, {}, 0});
  for (int gpu = 0; gpu < gpus; ++gpu) topology.hosts[0].gpus.push_back({gpu, "", "", 0, int64_t{16} << 30});
  RunConfig config = test_config({strategy, options, 1}, {});
  config.device = "auto";
  try {
    strategy_entry(strategy).plan(config, topology, {});
  } catch (const ConfigError& error) {
    return error.key() + ": " + error.what();
  }
  return "";
}

TEST(StepGraphOfRanks, RefusesAlwaysAtItsKey) {
  for (const char* strategy : {"single", "ddp"}) {
    EXPECT_EQ(refusal(strategy, ", graph: always", 1), "");
    EXPECT_EQ(refusal(strategy, ", graph: always", 0).rfind("strategy.graph: ", 0), 0u);
    const std::string every = refusal(strategy, ", graph: always, sync: {every: 4}", 1);
    EXPECT_NE(every.find("sync.every: 4"), std::string::npos) << every;
    EXPECT_EQ(refusal(strategy, ", graph: auto, sync: {every: 4}", 1), "");
  }
  const std::string apart = refusal("ddp", ", graph: always, sync: {every: 2, what: diloco}", 2);
  EXPECT_EQ(apart.rfind("strategy.graph: ", 0), 0u) << apart;
}

}  // namespace
}  // namespace convoy::testing
