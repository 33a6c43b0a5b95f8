// Plans of single and ddp on saved topologies, and the cost of a step.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

Topology machines(int hosts, int cores, int gpus) {
  Topology topology;
  for (int h = 0; h < hosts; ++h) {
    Host host;
    host.name = "host" + std::to_string(h);
    for (int c = 0; c < cores; ++c) host.cores.push_back({c, 0, 0, {c}});
    for (int g = 0; g < gpus; ++g) host.gpus.push_back({g, "", "", 0, int64_t{16} << 30});
    topology.hosts.push_back(host);
  }
  return topology;
}

RunConfig config(const std::string& device = "auto", const std::string& backend = "auto") {
  RunConfig config;
  config.name = "try";
  config.device = device;
  config.backend = backend;
  return config;
}

JobPlan plan(const std::string& strategy, const RunConfig& config, const Topology& topology, int ranks) {
  PlanRequest request;
  request.ranks = ranks;
  return strategy_entry(strategy).plan(config, topology, request).jobs.at(0);
}

std::string error_of(const std::string& strategy, const RunConfig& config, const Topology& topology, int ranks) {
  try {
    plan(strategy, config, topology, ranks);
  } catch (const ConfigError& error) {
    return error.key() + " " + name_of(error.kind()) + ": " + error.what();
  }
  return "no error";
}

TEST(StrategyPlan, SingleIsOneRank) {
  const JobPlan job = plan("single", config(), machines(1, 4, 0), 0);
  ASSERT_EQ(job.ranks.size(), 1u);
  EXPECT_EQ(job.backend, "local");
  EXPECT_EQ(job.ranks[0].devices.at(0).kind, DevicePlan::Kind::cores);
  EXPECT_EQ(plan("single", config(), machines(1, 4, 2), 0).ranks[0].devices.at(0).gpu, 0);
  EXPECT_EQ(plan("single", config("cpu"), machines(1, 4, 2), 0).ranks[0].devices.at(0).kind, DevicePlan::Kind::cores);
}

TEST(StrategyPlan, SingleRefusesSeveralRanks) {
  const std::string error = error_of("single", config(), machines(1, 4, 0), 3);
  EXPECT_NE(error.find("launch.ranks"), std::string::npos) << error;
  EXPECT_NE(error.find("ddp"), std::string::npos) << error;
}

// Returns a configuration whose strategy section has the form that the reader gives it.
RunConfig with_devices(const Json& devices, const std::string& backend = "auto") {
  RunConfig made = config("auto", backend);
  made.train.batch.rows = 64;
  made.strategy.options = Options(Json{{"devices", devices}, {"micro_batches", 1}});
  return made;
}

TEST(StrategyPlan, DataParallelIsOneProcessWithAThreadPerDevice) {
  const JobPlan job = plan("data_parallel", with_devices({"cores:0-1", "cores:3"}), machines(1, 4, 0), 0);
  ASSERT_EQ(job.ranks.size(), 2u);
  ASSERT_EQ(job.processes.size(), 1u);
  EXPECT_EQ(job.processes[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(job.backend, "local");
  EXPECT_EQ(job.ranks[0].cores, (std::vector<int>{0, 1}));
  EXPECT_EQ(job.ranks[0].threads, 2);
  EXPECT_EQ(job.ranks[1].cores, (std::vector<int>{3}));
  EXPECT_EQ(job.mesh.degree("data"), 2);
  EXPECT_EQ(plan("data_parallel", with_devices("auto"), machines(1, 4, 0), 0).ranks.size(), 4u);
  EXPECT_EQ(plan("data_parallel", with_devices("auto"), machines(1, 4, 0), 3).ranks.size(), 3u);
  const JobPlan gpus = plan("data_parallel", with_devices({"cuda:1", "cuda:0"}), machines(1, 4, 2), 0);
  EXPECT_EQ(gpus.backend, "nccl");
  EXPECT_EQ(gpus.ranks[0].devices.at(0).gpu, 1);
}

TEST(StrategyPlan, DataParallelRefusesMissingDevices) {
  const auto error = [](const Json& devices, const std::string& backend = "auto", int ranks = 0) {
    return error_of("data_parallel", with_devices(devices, backend), machines(1, 2, 1), ranks);
  };
  EXPECT_NE(error({"cores:0", "cores:2"}).find("devices.1"), std::string::npos);
  EXPECT_NE(error({"cores:0", "cores:2"}).find("cores 0, 1"), std::string::npos);
  EXPECT_NE(error({"cores:0", "cores:0"}).find("core 0"), std::string::npos);
  EXPECT_NE(error({"cuda:1"}).find("1 GPU"), std::string::npos);
  EXPECT_NE(error({"cuda:0", "cores:0"}).find("mixes"), std::string::npos);
  EXPECT_NE(error({"gpu:0"}).find("must be"), std::string::npos);
  EXPECT_NE(error({"cores:1-0"}).find("must be"), std::string::npos);
  EXPECT_NE(error(Json::array()).find("devices"), std::string::npos);
  EXPECT_NE(error({"cores:0"}, "mpi").find("backend"), std::string::npos);
  EXPECT_NE(error({"cores:0"}, "auto", 2).find("launch.ranks"), std::string::npos);
  RunConfig two = with_devices({"cores:0-1"});
  two.launch.cores_per_rank = 1;
  EXPECT_NE(error_of("data_parallel", two, machines(1, 2, 0), 0).find("launch.cores_per_rank"), std::string::npos);
}

TEST(StrategyPlan, DdpRunsOneProcessPerRank) {
  const JobPlan job = plan("ddp", config(), machines(1, 4, 0), 3);
  ASSERT_EQ(job.ranks.size(), 3u);
  ASSERT_EQ(job.processes.size(), 3u);
  EXPECT_EQ(job.backend, "gloo");
  EXPECT_EQ(job.mesh.degree("data"), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.ranks[static_cast<size_t>(rank)].process, rank);
    EXPECT_EQ(job.processes[static_cast<size_t>(rank)].ranks, std::vector<int>{rank});
  }
}

TEST(StrategyPlan, DdpOverLocalRunsThreadsInOneProcess) {
  const JobPlan job = plan("ddp", config("cpu", "local"), machines(1, 4, 0), 3);
  ASSERT_EQ(job.processes.size(), 1u);
  EXPECT_EQ(job.processes[0].ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_NE(error_of("ddp", config("cpu", "local"), machines(2, 4, 0), 4).find("backend"), std::string::npos);
}

TEST(StrategyPlan, DdpUsesEveryGpuByDefault) {
  const JobPlan job = plan("ddp", config(), machines(2, 8, 4), 0);
  ASSERT_EQ(job.ranks.size(), 8u);
  EXPECT_EQ(job.backend, "nccl");
  EXPECT_EQ(job.ranks[5].host, 1);
  EXPECT_EQ(job.ranks[5].devices.at(0).gpu, 1);
  EXPECT_EQ(plan("ddp", config("cpu"), machines(2, 8, 4), 0).ranks.size(), 1u);
  EXPECT_NE(error_of("ddp", config("cuda"), machines(1, 8, 2), 3).find("launch.ranks"), std::string::npos);
}

TEST(StrategyPlan, ReportsAMissingGpu) {
  EXPECT_EQ(error_of("ddp", config("cuda"), machines(1, 8, 0), 2).rfind("device device", 0), 0u);
}

RunConfig with_options(const Json& options) {
  RunConfig made = config();
  made.strategy.options = Options(options);
  return made;
}

TEST(StrategyPlan, HalfPrecisionNeedsALossScaler) {
  RunConfig half = with_options({{"micro_batches", 1}});
  half.precision = "fp16";
  EXPECT_NE(error_of("ddp", half, machines(1, 8, 0), 2).find("precision config"), std::string::npos);
  half.strategy.options = Options(Json{{"loss_scale", {{"initial", 1.0}}}});
  // Slow on the CPU: one rank reports it once.
  const Plan slow = strategy_entry("ddp").plan(half, machines(1, 8, 0), {});
  ASSERT_EQ(slow.warnings.size(), 1u);
  EXPECT_NE(slow.warnings[0].find("fp16"), std::string::npos);
  EXPECT_TRUE(strategy_entry("ddp").plan(half, machines(1, 8, 1), {}).warnings.empty());
}

TEST(StrategyPlan, RecomputeAcceptsAWordOrBlockNames) {
  for (const Json& good : {Json("none"), Json("blocks"), Json{"embedding", "blocks.1"}})
    EXPECT_EQ(error_of("fsdp", with_options({{"recompute", good}}), machines(1, 4, 0), 2), "no error") << good;
  for (const Json& bad : {Json("all"), Json(true), Json(3), Json::array(), Json{1, 2}, Json{{"blocks", 1}}})
    EXPECT_NE(error_of("fsdp", with_options({{"recompute", bad}}), machines(1, 4, 0), 2).find("recompute config"),
              std::string::npos)
        << bad;
}

TEST(StrategyPlan, FsdpRunsWhereDdpRuns) {
  const JobPlan job = plan("fsdp", config(), machines(2, 8, 4), 0);
  ASSERT_EQ(job.ranks.size(), 8u);
  EXPECT_EQ(job.backend, "nccl");
  EXPECT_EQ(job.mesh.degree("data"), 8);
  EXPECT_EQ(plan("fsdp", config("cpu"), machines(1, 4, 0), 3).processes.size(), 3u);
}

TEST(StrategyPlan, HostsFollowTheLauncher) {
  PlanRequest request;
  request.ranks = 3;
  request.rank_hosts = {1, 0, 1};
  const JobPlan job = strategy_entry("ddp").plan(config(), machines(2, 2, 0), request).jobs.at(0);
  EXPECT_EQ(job.ranks[0].host, 1);
  EXPECT_EQ(job.processes[1].host, 0);
}

TEST(StrategyPlan, GivesUnequalHostsRanksInProportion) {
  Topology topology = machines(2, 2, 0);
  for (int c = 2; c < 6; ++c) topology.hosts[1].cores.push_back({c, 0, 0, {c}});
  const JobPlan job = plan("ddp", config(), topology, 4);
  EXPECT_EQ(job.ranks[0].host, 0);
  EXPECT_EQ(job.ranks[1].host, 1);
  EXPECT_EQ(job.ranks[3].host, 1);
}

// A job with these options and global rows.
void configure(JobPlan& job, const Json& optimizer, int64_t rows, const Json& strategy) {
  job.config.optimizer = {optimizer.at("name"), Options(optimizer)};
  job.config.train.batch.rows = rows;
  job.config.strategy = {strategy.at("name"), Options(strategy)};
}

TEST(StrategyCost, CountsARingAllReduceOfTheGradients) {
  JobPlan job = plan("ddp", config("cpu"), machines(1, 4, 0), 4);
  configure(job, {{"name", "adam"}}, 10,
            {{"name", "ddp"},
             {"first_bucket_mb", 1.0},
             {"bucket_cap_mb", 4.0},
             {"sync", {{"every", 2}, {"what", "gradients"}}}});
  ModelDescription description;
  description.blocks = {{"a", 2 << 20, 10, 0, 0, 100}, {"b", 1 << 20, 0, 0, 0, 20}};
  const RankCost cost = strategy_entry("ddp").cost(job, description).at(3);
  EXPECT_DOUBLE_EQ(cost.parameter_bytes, 12.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(cost.gradient_bytes, cost.parameter_bytes);
  EXPECT_DOUBLE_EQ(cost.moment_bytes, 2 * cost.parameter_bytes);
  EXPECT_DOUBLE_EQ(cost.buffer_bytes, 40);
  EXPECT_DOUBLE_EQ(cost.activation_bytes, 120 * 3);  // three rows of ten over four ranks
  EXPECT_DOUBLE_EQ(cost.bytes_sent_per_step, 1.5 * cost.gradient_bytes / 2);
  EXPECT_DOUBLE_EQ(cost.messages_per_step, (1 + 3) / 2.0);  // 1 MiB, then 11 MiB by 4
  EXPECT_EQ(cost.owned_bytes, 0) << "rank 0 writes a small model";
  EXPECT_DOUBLE_EQ(strategy_entry("ddp").cost(job, description).front().owned_bytes, 3 * cost.parameter_bytes + 40);
}

TEST(StrategyCost, DividesTheStateOfALargeModelAmongTheReplicasThatWriteIt) {
  JobPlan job = plan("ddp", config("cpu"), machines(1, 4, 0), 2);
  configure(job, {{"name", "adam"}}, 10,
            {{"name", "ddp"}, {"first_bucket_mb", 1.0}, {"sync", {{"every", 1}, {"what", "gradients"}}}});
  constexpr int64_t large = 20 << 20, small = 4 << 20;  // elements
  ModelDescription description;
  description.blocks = {{"a", large, 10, 0, 0, 100}, {"b", small, 0, 0, 0, 20}};
  description.blocks[0].named = {{"a.weight", large}};
  description.blocks[1].named = {{"b.weight", small}};
  // Tensors of 80 and 16 MiB in turn: a to replica 0, b to 1; a's moments to 1 and 0; b's to 1 and 1.
  const auto costs = strategy_entry("ddp").cost(job, description);
  constexpr double mib = 1 << 20;
  EXPECT_DOUBLE_EQ(costs[0].owned_bytes, (80 + 80) * mib + 40);
  EXPECT_DOUBLE_EQ(costs[1].owned_bytes, (16 + 80 + 16 + 16) * mib);
}

TEST(StrategyCost, RecomputedBlocksKeepTheirInputs) {
  JobPlan job = plan("ddp", config("cpu"), machines(1, 4, 0), 2);
  ModelDescription description;  // inputs of 0, 7 and 9 bytes a row; 100, 200 and 50 kept
  description.blocks = {{"a", 1, 0, 0, 7, 100}, {"b", 1, 0, 0, 9, 200}, {"c", 1, 0, 0, 4, 50}};
  const auto bytes = [&](const Json& recompute) {
    configure(job, {{"name", "sgd"}, {"momentum", 0.0}}, 12,
              {{"name", "ddp"},
               {"first_bucket_mb", 1.0},
               {"bucket_cap_mb", 4.0},
               {"micro_batches", 3},
               {"recompute", recompute},
               {"sync", {{"every", 1}, {"what", "gradients"}}}});
    return strategy_entry("ddp").cost(job, description).front().activation_bytes;
  };
  EXPECT_DOUBLE_EQ(bytes("none"), 350 * 2);  // six rows a rank, in three micro-batches
  // While one block runs again, later blocks have freed their activations.
  EXPECT_DOUBLE_EQ(bytes("blocks"), (0 + 7 + 200) * 2);
  EXPECT_DOUBLE_EQ(bytes({"a", "c"}), (0 + 200 + 9 + 50) * 2);
  description.blocks[1].row_working_bytes = 300;
  description.blocks[1].working_bytes = 11;
  EXPECT_DOUBLE_EQ(bytes("none"), 300 * 2 + (300 * 2 + 11));
  EXPECT_DOUBLE_EQ(bytes("blocks"), (0 + 7 + 200 + 300) * 2 + 11);
}

TEST(StrategyCost, CountsShardsOfFsdp) {
  JobPlan job = plan("fsdp", config("cpu"), machines(1, 4, 0), 4);
  configure(job, {{"name", "adam"}}, 12,
            {{"name", "fsdp"},
             {"shard", "parameters"},
             {"reshard_after_forward", true},
             {"micro_batches", 1},
             {"overlap", true},
             {"units", "blocks"},
             {"sync", {{"every", 1}, {"what", "gradients"}}}});
  ModelDescription description;
  description.blocks = {{"a", 100, 10, 0, 0, 0}, {"b", 300, 0, 0, 0, 0}, {"c", 80, 0, 0, 0, 0}};
  const RankCost cost = strategy_entry("fsdp").cost(job, description).at(2);
  EXPECT_DOUBLE_EQ(cost.parameter_bytes, (480 / 4 + 400) * 4);
  EXPECT_DOUBLE_EQ(cost.gradient_bytes, (480 / 4 + 400) * 4);
  EXPECT_DOUBLE_EQ(cost.moment_bytes, 2 * 480 / 4 * 4);
  EXPECT_DOUBLE_EQ(cost.buffer_bytes, 40);
  EXPECT_DOUBLE_EQ(cost.bytes_sent_per_step, 0.75 * (480 * 3 - 80) * 4);
  EXPECT_DOUBLE_EQ(cost.messages_per_step, 3 + 2 + 3 + 2);
  EXPECT_DOUBLE_EQ(cost.owned_bytes, 3 * 480 / 4 * 4);
}

}  // namespace
}  // namespace convoy
