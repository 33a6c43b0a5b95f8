// data_parallel: ddp with ranks as threads of one process, one per device. It uses the class of ddp
// (strategies/ddp.cpp). Replicas persist over steps. Threads reduce through shared memory, GPUs through NCCL.
#include <algorithm>

#include "core/base/describe.h"
#include "core/base/options.h"
#include "core/base/text.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/mesh_plan.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/options/devices.h"

namespace convoy {

StrategyEntry ddp_entry();

namespace {

// Every GPU, or on the CPU every core as a separate device.
std::vector<DevicePlan> all_devices(const Host& host, bool gpus) {
  std::vector<DevicePlan> devices;
  if (gpus) {
    for (size_t i = 0; i < host.gpus.size(); ++i) devices.push_back({DevicePlan::Kind::gpu, int(i), {}});
  } else {
    for (size_t i = 0; i < std::max<size_t>(1, host.cores.size()); ++i) devices.emplace_back();
  }
  return devices;
}

std::vector<DevicePlan> devices_of(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  const DeviceOptions options = device_options(config.strategy.options);
  const Host& host = topology.hosts.front();
  std::vector<DevicePlan> devices = parse_devices(options, host);
  const auto ranks = size_t(request.ranks);
  if (devices.empty()) {
    bool gpus = on_gpus(config, topology);
    if (config.device == "auto" && ranks > host.gpus.size()) gpus = false;  // plan_on_mesh warns
    devices = all_devices(host, gpus);
    if (request.ranks > 0 && (ranks < devices.size() || devices.front().kind == DevicePlan::Kind::cores))
      devices.resize(ranks);
  }
  if (request.ranks > 0 && ranks != devices.size())
    throw ConfigError(SourceLocation{}, "launch.ranks", ranks, " ranks were requested, but there are ", devices.size(),
                      " devices; data_parallel has one rank per device");
  for (const DevicePlan& device : devices)
    if (device.kind != devices.front().kind)
      options.section.fail("devices", "mixes GPUs and cores; ranks that train together need devices of one kind");
  for (const DevicePlan& device : devices) {
    const auto cores = int64_t(device.cores.size());
    if (cores > 0 && config.launch.cores_per_rank > 0 && cores != config.launch.cores_per_rank)
      throw ConfigError(SourceLocation{}, "launch.cores_per_rank", "is ", config.launch.cores_per_rank,
                        ", and strategy.devices gives a rank ", cores, cores == 1 ? " core" : " cores",
                        "; leave it out");
  }
  return devices;
}

Plan plan_data_parallel(const RunConfig& config, const Topology& topology, const PlanRequest& request) {
  if (topology.hosts.size() > 1 || (!request.rank_hosts.empty() && request.ranks > 1))
    throw ConfigError(SourceLocation{}, "strategy.name",
                      "data_parallel is one process of one host and was started once per rank by a launcher; start it "
                      "alone, or take strategy ddp");
  const std::vector<DevicePlan> devices = devices_of(config, topology, request);
  const bool gpus = devices.front().kind == DevicePlan::Kind::gpu;
  const std::string backend = gpus && devices.size() > 1 ? "nccl" : "local";
  if (config.backend != "auto" && config.backend != backend)
    throw ConfigError(SourceLocation{}, "backend", "is ", config.backend, ", and threads of one process exchange by ",
                      backend, "; leave it auto, or take strategy ddp");
  PlanRequest threads = request;
  threads.ranks = int(devices.size());
  check_sparse_embeddings(config, true);
  Plan made = plan_replicas(config, topology, threads, threads.ranks);
  JobPlan& job = made.jobs.front();
  job.backend = backend;
  job.processes = {{0, {}}};
  for (RankPlan& rank : job.ranks) {
    const DevicePlan& device = devices[size_t(rank.rank)];
    rank.process = 0;
    rank.devices = {device};
    rank.cores = device.cores;
    if (!device.cores.empty() && config.launch.threads == 0) rank.threads = int(device.cores.size());
    job.processes.front().ranks.push_back(rank.rank);
  }
  return made;
}

}  // namespace

StrategyEntry data_parallel_entry() {
  StrategyEntry entry = ddp_entry();
  entry.name = "data_parallel";
  entry.help = "ddp within one process: one thread per device, each with a replica of the model; needs no launcher";
  const Option devices = describe::list("devices", "cuda:0, or sets of cores: cores:0, cores:0-3, cores:0+2",
                                        describe::option(OptionType::text, "device", "one device"), "auto")
                             .or_auto();
  entry.options.insert(entry.options.begin(), devices);
  // Ranks that are threads of one process would record at the same time, so there is no option `graph`.
  const auto graph = [](const Option& option) { return option.name == graph_option().name; };
  entry.options.erase(std::remove_if(entry.options.begin(), entry.options.end(), graph), entry.options.end());
  entry.plan = plan_data_parallel;
  return entry;
}

}  // namespace convoy
