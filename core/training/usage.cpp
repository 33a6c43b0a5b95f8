#include "core/training/usage.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

// CPU time without spinning in waits, divided by the wall time of this rank's cores.
double cpu_efficiency(const Context& context, const ResourceUsage& loop) {
  const double cpu = loop.cpu / context.process_ranks - loop.wait_cpu;
  return loop.wall > 0 ? cpu / loop.wall / std::max(context.threads, 1) : 0;
}

}  // namespace

ResourceUsage ResourceUsage::now(const Context& context) {
  const Communicator& world = *context.world;
  // CPU time of the threads that send heartbeats, check collectives and answer stall inquiries.
  SupervisedChannel* const channel = context.channel->supervised();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
          process_cpu_seconds(),
          channel != nullptr ? channel->cpu_seconds() / context.process_ranks : 0,
          world.wait_seconds(),
          world.wait_cpu_seconds(),
          world.bytes_sent()};
}

ResourceUsage ResourceUsage::operator-(const ResourceUsage& before) const {
  return {wall - before.wall,   cpu - before.cpu,           supervision_cpu - before.supervision_cpu,
          waits - before.waits, wait_cpu - before.wait_cpu, bytes - before.bytes};
}

Json rank_statistics(const Context& context, const ResourceUsage& loop, int64_t steps, const DataTime& data) {
  steps = std::max<int64_t>(steps, 1);
  const MemoryStatistics memory = memory_statistics();
  const double state_cpu =
      state_file_cpu_seconds(read_collective_records(str(context.folder, "/logs/rank", context.rank, ".state")), steps);
  return {{"data_seconds", data.waited},
          {"data_cpu_seconds", data.cpu},
          {"wait_seconds", loop.waits},
          {"cpu_seconds", loop.cpu},
          {"supervision_cpu_seconds", loop.supervision_cpu + state_cpu},
          {"wall_seconds", loop.wall},
          {"bytes_sent_per_step", static_cast<double>(loop.bytes) / static_cast<double>(steps)},
          {"peak_tensor_bytes", memory.tensors_peak},
          {"peak_resident_bytes", memory.resident_peak},
          {"cpu_efficiency", cpu_efficiency(context, loop)}};
}

void add_statistics(const Context& context, const Json& rank, Json& summary) {
  const at::Device device = context.devices.front();
  const std::vector<std::string> names = {"data_seconds", "data_cpu_seconds", "wait_seconds", "bytes_sent_per_step"};
  std::vector<double> mine;
  for (const std::string& name : names) mine.push_back(rank.at(name).get<double>());
  at::Tensor worst = at::tensor(mine, at::kDouble).to(device);
  context.world->all_reduce(worst, ReduceOp::max, {"rank statistics", {}})->wait();
  at::Tensor efficiency =
      at::scalar_tensor(rank.at("cpu_efficiency").get<double>(), at::TensorOptions(at::kDouble).device(device));
  context.world->all_reduce(efficiency, ReduceOp::sum, {"efficiency", {}})->wait();
  summary["cpu_efficiency"] = efficiency.item<double>() / context.size;
  worst = worst.to(at::kCPU);
  for (size_t i = 0; i < names.size(); ++i) summary[names[i]] = worst.data_ptr<double>()[i];
}

}  // namespace convoy
