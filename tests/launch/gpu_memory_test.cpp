// A pipeline's limit on GPU memory, from the farm to the allocator of each of its processes.
#include "launch/machine/gpus.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/control/exit_codes.h"
#include "launch/farm/run/farm.h"
#include "launch/farm/run/local_launcher.h"
#include "launch/process/process.h"
#include "tests/launch/saved_topologies.h"

namespace convoy {
namespace {

// One rank a process, each on the GPU of that number.
JobPlan on_gpus(const std::vector<int>& gpus) {
  JobPlan job;
  for (int gpu : gpus) {
    RankPlan rank;
    rank.rank = rank.process = static_cast<int>(job.ranks.size());
    if (gpu >= 0) rank.devices.push_back({DevicePlan::Kind::gpu, gpu, {}});
    job.processes.push_back({0, {rank.rank}});
    job.ranks.push_back(rank);
  }
  return job;
}

TEST(GpuMemory, IsReadFromTheEnvironment) {
  EXPECT_EQ(gpu_memory_limit({}), 0);
  EXPECT_EQ(gpu_memory_limit({{gpu_memory_variable, "4294967296"}}), 4 * gib);
  for (const char* wrong : {"", "0", "-1", "4 GB", "4g", "99999999999999999999"}) {
    try {
      gpu_memory_limit({{gpu_memory_variable, wrong}});
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::command_line);
      EXPECT_NE(std::string(error.what()).find(gpu_memory_variable), std::string::npos) << error.what();
    }
  }
}

TEST(GpuMemory, IsDividedBetweenProcessesOfAGpu) {
  EXPECT_EQ(limit_of_process(on_gpus({0, 1}), 0, 6 * gib), 6 * gib);
  EXPECT_EQ(limit_of_process(on_gpus({0, 1, 0}), 0, 6 * gib), 3 * gib);
  EXPECT_EQ(limit_of_process(on_gpus({0, 1, 0}), 1, 6 * gib), 6 * gib);
  EXPECT_EQ(limit_of_process(on_gpus({0, 0, 0}), 2, 6 * gib), 2 * gib);
  EXPECT_EQ(limit_of_process(on_gpus({0, 0}), 0, 0), 0) << "no limit";
  EXPECT_EQ(limit_of_process(on_gpus({-1}), 0, gib), gib) << "without a GPU nothing is held to it";
  // Threads of one process have one allocator.
  JobPlan threads = on_gpus({0, 0});
  threads.processes = {{0, {0, 1}}};
  EXPECT_EQ(limit_of_process(threads, 0, 6 * gib), 6 * gib);
  // The same number on another host is another GPU.
  JobPlan apart = on_gpus({0, 0});
  apart.ranks[1].host = apart.processes[1].host = 1;
  EXPECT_EQ(limit_of_process(apart, 0, 6 * gib), 6 * gib);
}

// A rank receives the limit of its `convoy`.
TEST(GpuMemory, ReachesTheRanks) {
  RankAssignment assigned;
  assigned.job = on_gpus({0});
  const Variables reported = without_ranks({{gpu_memory_variable, "4294967296"}, {"CONVOY_RANK", "3"}});
  EXPECT_EQ(gpu_memory_limit(rank_process("/bin/true", assigned, 0, "channel", reported).environment), 4 * gib);
}

// The watch bounds memory outside the allocator; without a limit there is no watch.
TEST(GpuMemory, TheLimitLeavesRoomOutsideTheAllocator) {
  LaunchSpec order;
  order.gpus = {"GPU-a", "GPU-b"};
  EXPECT_EQ(watched_gpu_memory(order), 0);
  order.gpu_memory = 4 * gib;
  EXPECT_EQ(watched_gpu_memory(order), 2 * (4 * gib + outside_allocator));
}

TEST(GpuMemory, ExhaustionFailsThePipeline) {
  const Json summary = {
      {"status", "failed"},
      {"name", "a"},
      {"failure", {{"cause", name_of(Failure::out_of_memory)}, {"message", "CUDA out of memory"}, {"rank", 0}}}};
  const AttemptResult limited = classify({exit_code::out_of_memory, 0}, StopReason::none, "", summary, "gpu_memory");
  EXPECT_EQ(limited.cause, "memory");
  EXPECT_EQ(limited.message, "CUDA out of memory (gpu_memory)");
  EXPECT_EQ(limited.exit_code, exit_code::out_of_memory);
  const Json completed = with_failure(summary, "a", limited);
  EXPECT_EQ(completed["failure"]["cause"], "memory");
  EXPECT_EQ(completed["failure"]["rank"], 0);
  EXPECT_EQ(classify({exit_code::out_of_memory, 0}, StopReason::none, "", summary).cause,
            name_of(Failure::out_of_memory));
  const Json other = {{"status", "failed"}, {"failure", {{"cause", "training"}, {"message", "nan"}}}};
  EXPECT_EQ(classify({exit_code::training, 0}, StopReason::none, "", other, "gpu_memory").cause, "training");
}

}  // namespace
}  // namespace convoy
