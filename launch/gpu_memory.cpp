#include "launch/gpu_memory.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"

namespace convoy {
namespace {

// Host and number of each GPU that ranks of a process are on.
std::set<std::pair<int, int>> gpus_of(const Job& job, const ProcessPlan& process) {
  std::set<std::pair<int, int>> gpus;
  for (int index : process.ranks) {
    const RankPlan& rank = job.ranks.at(static_cast<size_t>(index));
    for (const DevicePlan& device : rank.devices)
      if (device.kind == DevicePlan::Kind::gpu) gpus.emplace(rank.host, device.gpu);
  }
  return gpus;
}

}  // namespace

int64_t gpu_memory_limit(const Variables& variables) {
  const auto found = variables.find(gpu_memory_variable);
  if (found == variables.end()) return 0;
  const std::string& text = found->second;
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes <= 0)
    throw Error(Failure::command_line, str(gpu_memory_variable, "=", text,
                                           " is no number of bytes above 0; a farm sets it for its pipelines, from "
                                           "their gpu_memory: unset it"));
  return bytes;
}

int64_t limit_of_process(const Job& job, int process, int64_t limit) {
  if (limit <= 0) return 0;
  const auto mine = gpus_of(job, job.processes.at(static_cast<size_t>(process)));
  int64_t most = 1;  // processes on one of its GPUs
  for (const auto& gpu : mine) {
    int64_t sharing = 0;
    for (const ProcessPlan& other : job.processes) sharing += static_cast<int64_t>(gpus_of(job, other).count(gpu));
    most = std::max(most, sharing);
  }
  return limit / most;
}

}  // namespace convoy
