#include "launch/process/process.h"

#include <gtest/gtest.h>

#include "tests/support/config_text.h"

namespace convoy {
namespace {

Variables variables_of(int threads, bool shared, Variables environment = {}) {
  RankAssignment assigned;
  RankPlan rank;
  rank.threads = threads;
  assigned.job.ranks = {rank};
  assigned.job.processes = {{0, {0}}};
  assigned.passive = shared;
  return rank_process("/bin/true", assigned, 0, "channel", std::move(environment)).environment;
}

TEST(RankProcess, ThreadsThatShareACoreDoNotSpin) {
  EXPECT_EQ(variables_of(2, false).at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(variables_of(1, true).at("OMP_WAIT_POLICY"), "passive");
  EXPECT_EQ(variables_of(1, false).count("OMP_WAIT_POLICY"), 0u);  // no process to wait for
  EXPECT_EQ(variables_of(2, true, {{"OMP_WAIT_POLICY", "active"}}).at("OMP_WAIT_POLICY"), "active");
  EXPECT_EQ(variables_of(3, false).at("OMP_NUM_THREADS"), "3");
}

RankAssignment assignment_of(const std::vector<std::vector<std::string>>& uuids) {
  RankAssignment assigned;
  int gpu = 4;
  for (const auto& ids : uuids) {
    RankPlan rank;
    rank.rank = static_cast<int>(assigned.job.ranks.size());
    for (const std::string& id : ids) rank.devices.push_back({DevicePlan::Kind::gpu, gpu++, {}, id});
    assigned.job.ranks.push_back(rank);
  }
  return assigned;
}

TEST(RankProcess, SeesItsGpusByUuid) {
  RankAssignment assigned = assignment_of({{"GPU-a"}, {"GPU-b", "GPU-c"}});
  assigned.job.processes = {{0, {0}}, {0, {1}}};
  const ProcessStart second = rank_process("/bin/true", assigned, 1, "channel", {{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}});
  EXPECT_EQ(second.environment.at("CUDA_VISIBLE_DEVICES"), "GPU-b,GPU-c");
  const std::vector<std::string> shown = visible_gpus(assigned.job, 1);
  EXPECT_EQ(gpu_index_in(shown, assigned.job.ranks[1].devices[0]), 0);
  EXPECT_EQ(gpu_index_in(shown, assigned.job.ranks[1].devices[1]), 1);
}

TEST(RankProcess, SeesAllGpusWithoutAUuid) {
  RankAssignment assigned = assignment_of({{""}});
  assigned.job.processes = {{0, {0}}};
  const ProcessStart start = rank_process("/bin/true", assigned, 0, "channel", {{"CUDA_VISIBLE_DEVICES", "6,7"}});
  EXPECT_EQ(start.environment.at("CUDA_VISIBLE_DEVICES"), "6,7");
  EXPECT_EQ(gpu_index_in(visible_gpus(assigned.job, 0), assigned.job.ranks[0].devices[0]), 4);
}

TEST(RankProcess, ReadsACompressedAssignment) {
  RankAssignment sent = assignment_of(std::vector<std::vector<std::string>>(500, {"GPU-a"}));
  sent.job.config = testing::read_config(testing::valid_config);
  sent.folder = "/runs/a";
  const std::string bytes = to_bytes(sent);
  EXPECT_LT(bytes.size(), 10000u);
  const RankAssignment received = rank_assignment_from_bytes(bytes);
  EXPECT_EQ(received.folder, "/runs/a");
  EXPECT_EQ(received.job.ranks.size(), 500u);
  EXPECT_EQ(received.job.ranks[499].devices[0].uuid, "GPU-a");
  EXPECT_EQ(received.job.config.resolved, sent.job.config.resolved);
  std::string longer = bytes, other = bytes;
  ++longer[0];
  ++other[other.size() / 2];
  for (const std::string& damaged :
       {std::string(), bytes.substr(0, 8), bytes.substr(0, bytes.size() / 2), longer, other})
    EXPECT_THROW(rank_assignment_from_bytes(damaged), Error) << damaged.size();
}

}  // namespace
}  // namespace convoy
