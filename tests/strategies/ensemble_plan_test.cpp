// Placement of an ensemble's members, the settings of each, and refusals before anything starts.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/ensemble.h"
#include "tests/support/errors.h"
#include "tests/support/one_host.h"
#include "tests/support/torch/equivalence.h"

namespace convoy {
namespace {

constexpr int64_t gpu_memory = int64_t{16} << 30;

RunConfig ensemble_config(const std::string& options) { return testing::test_config({"ensemble", options, 1}, {}); }

const MemberFunctions& members() { return strategy_entry("ensemble").members; }

JobPlan plan(const std::string& options, const Topology& topology, int ranks = 0) {
  RunConfig run = ensemble_config(options);
  run.device = "auto";
  PlanRequest request;
  request.ranks = ranks;
  return strategy_entry("ensemble").plan(run, topology, request).jobs.at(0);
}

std::string refusal_of(const std::string& options, int ranks = 0) {
  return error_of([&] { plan(options, one_host(2), ranks); });
}

TEST(EnsemblePlan, ThreadsRunInOneProcessWithARankPerCore) {
  for (const char* how : {", how: threads", ""}) {
    const JobPlan job = plan(how, one_host(2));
    EXPECT_EQ(job.ranks.size(), 2u);
    ASSERT_EQ(job.processes.size(), 1u);
    EXPECT_EQ(job.processes[0].ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(job.backend, "local");
    EXPECT_EQ(job.mesh.degree("members"), 2);
    EXPECT_EQ(job.mesh.degree("data"), 1);
  }
}

TEST(EnsemblePlan, ProcessesRunARankEachAndAStackRunsInOne) {
  const JobPlan processes = plan(", how: processes", one_host(2));
  EXPECT_EQ(processes.processes.size(), 2u);
  EXPECT_EQ(processes.backend, "gloo");
  EXPECT_EQ(plan(", how: stacked", one_host(2)).ranks.size(), 1u);
  EXPECT_EQ(plan(", how: stacked", one_host(2), 2).processes.size(), 2u);
}

TEST(EnsemblePlan, EveryGpuHasMembers) {
  const JobPlan job = plan(", how: threads", one_host(8, 4, gpu_memory));
  ASSERT_EQ(job.ranks.size(), 4u);
  EXPECT_EQ(job.backend, "nccl");
  EXPECT_EQ(job.ranks[3].devices.at(0).gpu, 3);
  EXPECT_EQ(plan(", how: stacked", one_host(8, 4, gpu_memory)).ranks.size(), 4u);
}

// Ranks may share a GPU, as processes, or as threads of one process with a stream each. nccl does not allow that.
TEST(EnsemblePlan, RanksMayShareAGpu) {
  const auto shared = [](const std::string& how, const std::string& backend = "auto") {
    RunConfig run = ensemble_config(how);
    run.device = "cuda";
    run.backend = backend;
    PlanRequest request;
    request.ranks = 5;
    return strategy_entry("ensemble").plan(run, one_host(8, 2, gpu_memory), request);
  };
  const JobPlan job = shared(", how: processes").jobs.at(0);
  EXPECT_EQ(job.backend, "gloo");
  EXPECT_EQ(job.processes.size(), 5u);
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(job.ranks[static_cast<size_t>(rank)].devices.at(0).gpu, rank % 2);
  EXPECT_THROW(shared(", how: processes", "nccl"), ConfigError);
  const Plan threads = shared(", how: threads");
  EXPECT_EQ(threads.jobs.at(0).backend, "local");
  EXPECT_EQ(threads.jobs.at(0).processes.size(), 1u);
  for (int rank = 0; rank < 5; ++rank)
    EXPECT_EQ(threads.jobs.at(0).ranks[static_cast<size_t>(rank)].devices.at(0).gpu, rank % 2);
  ASSERT_FALSE(threads.warnings.empty());
  EXPECT_EQ(threads.warnings.back(), "up to 3 threads share a GPU, each with a separate stream");
  EXPECT_THROW(shared(", how: threads", "nccl"), ConfigError);
}

TEST(EnsemblePlan, EveryRankHasMembers) {
  EXPECT_EQ(plan(", members: 3, how: threads", one_host(8)).ranks.size(), 3u);
  EXPECT_EQ(refusal_of(", members: 3", 4).rfind("launch.ranks: ", 0), 0u) << refusal_of(", members: 3", 4);
  int64_t next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const auto [first, last] = members_of_rank(10, rank, 4);
    EXPECT_EQ(first, next);
    EXPECT_GE(last - first, 2);
    EXPECT_LE(last - first, 3);
    next = last;
  }
  EXPECT_EQ(next, 10);
}

TEST(EnsemblePlan, MembersGetTheirOptions) {
  const auto plain = members_of(ensemble_config(", members: 3"));
  ASSERT_EQ(plain.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain[i].seed, 7 + i);  // the run's is 7
    EXPECT_EQ(plain[i].sample.seed, 7 + i);
    EXPECT_EQ(plain[i].learning_rate, 3e-3);
    EXPECT_EQ(plain[i].weight_decay, 0.1);
    EXPECT_EQ(plain[i].patience, 0);
    EXPECT_EQ(plain[i].sample.rows, MemberSample::Rows::all);
  }
  const auto given = members_of(ensemble_config(
      ", members: 3, seed: [4, 4, 9], lr: {from: 1.0e-4, to: 1.0e-2, scale: log}, weight_decay: {from: 0, to: 1}, "
      "samples: {subset: 0.5}, early_stop: {patience: [1, 0, 3]}"));
  EXPECT_EQ(given[2].seed, 9u);
  EXPECT_NEAR(given[1].learning_rate, 1e-3, 1e-15);
  EXPECT_NEAR(given[1].weight_decay, 0.5, 1e-15);
  EXPECT_EQ(given[2].patience, 3);
  EXPECT_EQ(given[1].sample.fraction, 0.5);
  EXPECT_EQ(members_of(ensemble_config(", members: 3, samples: {folds: 3}"))[2].sample.member, 2);
}

TEST(EnsemblePlan, MembersHaveSeparateOptimizers) {
  const RunConfig run = ensemble_config(", members: 2, lr: [1.0e-3, 2.0e-3], weight_decay: [0, 0.5]");
  const Component own = optimizer_of(run.optimizer, members_of(run)[1]);
  EXPECT_EQ(own.options.real("lr"), 2e-3);
  EXPECT_EQ(own.options.real("weight_decay"), 0.5);
  EXPECT_EQ(own.options.real("eps"), run.optimizer.options.real("eps"));
}

TEST(EnsemblePlan, RefusesConflictingOptionsAtTheirKey) {
  const std::pair<const char*, const char*> wrong[] = {
      {", members: 3, samples: {folds: 4}", "strategy.samples"},
      {", members: 3, samples: {folds: 1}", "strategy.samples"},
      {", members: 3, samples: {subset: 0}", "strategy.samples"},
      {", members: 3, samples: {subset: 1.5}", "strategy.samples"},
      {", members: 3, samples: some", "strategy.samples"},
      {", members: 3, samples: {subset: 0.5, folds: 2}", "strategy.samples"},
      {", members: 3, seed: [1, 2]", "strategy.seed"},
      {", members: 3, seed: -1", "strategy.seed"},
      {", members: 3, lr: [1.0e-3]", "strategy.lr"},
      {", members: 3, lr: {from: 0, to: 1, scale: log}", "strategy.lr"},
      {", members: 3, lr: {from: 0.1, to: 1, step: 3}", "strategy.lr"},
      {", members: 3, lr: high", "strategy.lr"},
      {", members: 3, lr: [1.0e-3, 1.0e-3, 1.0e+308]", "strategy.lr"},
      {", members: 3, weight_decay: {from: 0, to: 1.0e+308}", "strategy.weight_decay"},
      {", members: 3, weight_decay: [0, 0, -1]", "strategy.weight_decay"},
      {", members: 3, early_stop: {patience: 1.5}", "strategy.early_stop.patience"},
      {", members: 3, early_stop: {patience: [1, 2]}", "strategy.early_stop.patience"},
  };
  for (const auto& [options, key] : wrong) {
    const std::string error = refusal_of(options);
    EXPECT_EQ(error.rfind(std::string(key) + ": ", 0), 0u) << options << " → " << error;
  }
}

TEST(EnsemblePlan, RefusesThreadsWithOtherBackends) {
  RunConfig run = ensemble_config(", how: threads");
  run.backend = "gloo";
  EXPECT_THROW(strategy_entry("ensemble").plan(run, one_host(2), {}), ConfigError);
  run.backend = "auto";
  PlanRequest launched;
  launched.ranks = 2;
  launched.rank_hosts = {0, 0};
  EXPECT_THROW(strategy_entry("ensemble").plan(run, one_host(2), launched), ConfigError);
  EXPECT_EQ(strategy_entry("ensemble").plan(ensemble_config(""), one_host(2), launched).jobs[0].processes.size(), 2u);
  // `auto` chooses a possible mode.
  run = ensemble_config("");
  run.backend = "gloo";
  EXPECT_EQ(strategy_entry("ensemble").plan(run, one_host(2), {}).jobs[0].processes.size(), 2u);
}

TEST(EnsemblePlan, OffersThePossibleExecutionModes) {
  EXPECT_TRUE(members().modes(ensemble_config(", how: threads")).empty());
  EXPECT_FALSE(strategy_entry("single").members.modes);
  std::vector<std::string> planned;
  for (const std::string& way : members().modes(ensemble_config(", members: 3"))) {
    RunConfig run = ensemble_config(", members: 3").changed({{"strategy", {{"how", way}}}});
    run.device = "auto";
    const JobPlan job = strategy_entry("ensemble").plan(run, one_host(2), {}).jobs.at(0);
    EXPECT_EQ(members().mode(job), way);
    planned.push_back(convoy::str(way, ' ', job.ranks.size(), ' ', job.processes.size()));
  }
  EXPECT_EQ(planned, (std::vector<std::string>{"stacked 1 1", "threads 2 1", "processes 2 2"}));
}

// A metric that no evaluation of a member reports is refused, with a list of those that exist.
TEST(EnsemblePlan, WatchesAReportedMetric) {
  const EvaluationMetrics known{{"loss", "accuracy"}, {"loss", "accuracy"}}, none;
  const auto error = [](const std::string& options, const EvaluationMetrics& metrics) -> std::string {
    try {
      members().check_metric(ensemble_config(", members: 3, " + options), metrics);
    } catch (const ConfigError& error) {
      return error.key() + ": " + error.what();
    }
    return "";
  };
  EXPECT_FALSE(members().watches_metric(ensemble_config(", members: 3")));
  EXPECT_TRUE(members().watches_metric(ensemble_config(", members: 3, early_stop: {patience: [0, 0, 2]}")));
  EXPECT_EQ(error("early_stop: {patience: 1}", known), "");
  EXPECT_EQ(error("early_stop: {patience: 1, metric: accuracy}", known), "");
  const std::string wrong = error("early_stop: {patience: 1, metric: acuracy}", known);
  EXPECT_EQ(wrong.rfind("strategy.early_stop.metric: ", 0), 0u) << wrong;
  EXPECT_NE(wrong.find("there are loss, accuracy; did you mean accuracy?"), std::string::npos) << wrong;
  EXPECT_NE(error("early_stop: {patience: 1, metric: mean_loss}", known), "") << "of no member";
  const std::string held_out = "early_stop: {patience: 1, metric: out_of_fold_loss}";
  EXPECT_NE(error(held_out, known), "");
  EXPECT_EQ(error(held_out + ", samples: {folds: 3}", known), "");
  EXPECT_NE(error("early_stop: {patience: 1}", none).find("no rows to evaluate on"), std::string::npos);
  EXPECT_EQ(Json(known).get<EvaluationMetrics>().held_out, known.held_out);
}

TEST(EnsemblePlan, NamesTheMetricsOfTheWholeRun) {
  const EvaluationMetrics known{{"loss", "accuracy"}, {"loss"}};
  const std::vector<std::string> all = {"loss",      "accuracy",      "out_of_fold_loss",
                                        "mean_loss", "mean_accuracy", "vote_accuracy"};
  EXPECT_EQ(members().possible_metrics(known), all);
  EXPECT_EQ(members().metrics(ensemble_config(", members: 3, samples: {folds: 3}"), known), all);
  EXPECT_EQ(members().metrics(ensemble_config(", members: 3, vote: false"), known), known.evaluated);
}

TEST(EnsemblePlan, SumsTheCostsOfItsMembers) {
  ModelDescription description;
  BlockDescription block;
  block.name = "one";
  block.parameters = 100;
  block.row_saved_bytes = 8;
  description.blocks = {block};
  const JobPlan job = plan(", members: 3, how: threads", one_host(2));
  const auto costs = strategy_entry("ensemble").cost(job, description);
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[0].parameter_bytes, 2 * 400);
  EXPECT_EQ(costs[1].parameter_bytes, 400);
  EXPECT_EQ(costs[0].moment_bytes, 2 * 800);
  EXPECT_EQ(costs[0].bytes_sent_per_step, 0);
  EXPECT_EQ(costs[0].activation_bytes, 2 * costs[1].activation_bytes);
}

}  // namespace
}  // namespace convoy
