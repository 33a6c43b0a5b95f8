#include "strategies/plans/mesh_plan.h"

#include <algorithm>

#include "core/base/text.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/sparse_embeddings.h"

namespace convoy {
namespace {

int gpu_count(const Topology& topology) {
  size_t count = 0;
  for (const Host& host : topology.hosts) count += host.gpus.size();
  return int(count);
}

// Host of each rank: from the launcher, or contiguous runs in proportion to the hosts' devices.
std::vector<int> hosts_of(const Topology& topology, const PlanRequest& request, int ranks, bool gpus) {
  if (!request.rank_hosts.empty()) {
    CONVOY_CHECK(int(request.rank_hosts.size()) == ranks, "hosts for ", request.rank_hosts.size(), " ranks, planned ",
                 ranks);
    return request.rank_hosts;
  }
  std::vector<double> room;
  double total = 0;
  for (const Host& host : topology.hosts) {
    room.push_back(std::max<double>(1, double(gpus ? host.gpus.size() : host.cores.size())));
    total += room.back();
  }
  std::vector<int> hosts;
  double until = 0;
  for (size_t host = 0; host < room.size(); ++host) {
    until += room[host] / total * ranks;
    const bool last = host + 1 == room.size();
    while (int(hosts.size()) < ranks && (last || double(hosts.size()) + 0.5 < until)) hosts.push_back(int(host));
  }
  return hosts;
}

std::string backend_of(const RunConfig& config, bool gpus, int ranks) {
  if (config.backend != "auto") return config.backend;
  if (ranks == 1) return "local";
  return gpus ? "nccl" : "gloo";
}

// A host with more ranks than GPUs; null if there is none.
const Host* short_of_gpus(const Topology& topology, const std::vector<int>& hosts) {
  std::vector<size_t> ranks(topology.hosts.size(), 0);
  for (const int host : hosts) ++ranks.at(size_t(host));
  for (size_t host = 0; host < ranks.size(); ++host)
    if (ranks[host] > topology.hosts[host].gpus.size()) return &topology.hosts[host];
  return nullptr;
}

}  // namespace

bool on_gpus(const RunConfig& config, const Topology& topology) {
  const int gpus = gpu_count(topology);
  if (config.device == "cuda" && gpus == 0) {
    throw ConfigError(SourceLocation{}, "device",
                      "cuda, and no GPU was found on any host; use `device: cpu` or `device: auto`",
                      Failure::device_missing);
  }
  return gpus > 0 && config.device != "cpu";
}

Plan plan_replicas(const RunConfig& config, const Topology& topology, const PlanRequest& request, int ranks) {
  return plan_on_mesh(config, topology, request, Mesh({{"data", ranks}}));
}

Plan plan_data_axis(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  int ranks = request.ranks;
  if (ranks == 0 && on_gpus(config, topology)) ranks = gpu_count(topology);
  return plan_replicas(config, topology, request, std::max(ranks, 1));
}

Plan plan_on_mesh(const RunConfig& config, const Topology& topology, const PlanRequest& request, const Mesh& mesh,
                  bool share_gpus) {
  const int ranks = mesh.size();
  check_memory_options(config);
  const std::vector<std::string> left_out = check_shared_effects(config);
  check_micro_batches(config, mesh.degree("data"));
  check_graph(config, topology);
  bool gpus = on_gpus(config, topology);
  std::vector<int> hosts = hosts_of(topology, request, ranks, gpus);
  std::string note;
  if (gpus && config.device == "auto") {
    if (const Host* host = short_of_gpus(topology, hosts)) {
      gpus = false;
      hosts = hosts_of(topology, request, ranks, gpus);
      note = str("device: auto takes cores: ", host->name, " has ", host->gpus.size(),
                 host->gpus.size() == 1 ? " GPU" : " GPUs", ", fewer than ranks; take fewer ranks for the GPUs");
    }
  }
  const bool shared = gpus && share_gpus && short_of_gpus(topology, hosts) != nullptr;
  const std::string backend = backend_of(config, gpus && !shared, ranks);
  const bool threads = backend == "local";
  if (threads && hosts.front() != hosts.back())
    throw ConfigError(SourceLocation{}, "backend",
                      "local reaches the threads of one process only, and the ranks are on several "
                      "hosts; use gloo, mpi or nccl");
  JobPlan job;
  job.name = config.name;
  job.mesh = mesh;
  job.backend = backend;
  job.config = config;
  std::vector<int> used(topology.hosts.size(), 0);
  for (int rank = 0; rank < ranks; ++rank) {
    RankPlan plan;
    plan.rank = rank;
    plan.host = hosts[size_t(rank)];
    plan.process = threads ? 0 : rank;
    plan.threads = int(std::max<int64_t>(config.launch.threads, 1));
    const auto host = size_t(plan.host);
    DevicePlan device;
    if (gpus) {
      const int here = int(topology.hosts[host].gpus.size());
      if (used[host] >= here && (!shared || backend == "nccl" || here == 0))
        throw ConfigError(SourceLocation{}, "launch.ranks", "host ", topology.hosts[host].name, " has ", here,
                          " GPUs for more ranks than that; ", "take fewer ranks or `device: cpu`");
      device.kind = DevicePlan::Kind::gpu;
      device.gpu = used[host]++ % here;
    }
    plan.devices.push_back(device);
    if (!threads || rank == 0) job.processes.push_back({plan.host, {}});
    job.processes.back().ranks.push_back(rank);
    job.ranks.push_back(std::move(plan));
  }
  Plan made{{std::move(job)}, left_out};
  if (!note.empty()) made.warnings.push_back(note);
  if (config.precision == "fp16" && !gpus)
    made.warnings.push_back("precision: fp16 is slow on the CPU, which computes in fp32; set precision: fp32 or bf16");
  for (std::string& line : sparse_warnings(config)) made.warnings.push_back(std::move(line));
  return made;
}

}  // namespace convoy
