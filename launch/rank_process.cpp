#include "launch/rank_process.h"

#include <algorithm>
#include <set>

namespace convoy {

Json to_json(const Assigned& assigned) {
  return {{"job", to_json(assigned.job)},    {"folder", assigned.folder},   {"attempt", assigned.attempt},
          {"started", assigned.started},     {"passive", assigned.passive}, {"snapshots", assigned.snapshots},
          {"inject", Json(assigned.faults)}, {"bench", assigned.bench}};
}

Assigned assigned_from_json(const Json& json) {
  Assigned assigned;
  assigned.job = job_from_json(json.at("job"));
  assigned.folder = json.at("folder").get<std::string>();
  assigned.attempt = json.at("attempt").get<int>();
  assigned.started = json.at("started").get<double>();
  assigned.passive = json.at("passive").get<bool>();
  assigned.snapshots = json.at("snapshots");
  assigned.faults = json.at("inject").get<std::vector<std::string>>();
  assigned.bench = json.at("bench");
  return assigned;
}

std::string rank_program() {
  return executable_path(own_folder() + "/convoy-rank", "it belongs beside convoy: build it with `ninja convoy-rank`");
}

ProcessStart rank_process(const std::string& program, const Assigned& assigned, int process, const std::string& channel,
                          Variables environment) {
  const ProcessPlan& plan = assigned.job.processes.at(static_cast<size_t>(process));
  std::set<int> cores;
  int threads = 1;
  for (int index : plan.ranks) {
    const RankPlan& rank = assigned.job.ranks.at(static_cast<size_t>(index));
    cores.insert(rank.cores.begin(), rank.cores.end());
    threads = std::max(threads, rank.threads);
  }
  environment["CONVOY_CHANNEL"] = channel;
  environment["CONVOY_PROCESS"] = std::to_string(process);
  environment["CONVOY_RANK"] = std::to_string(plan.ranks.front());
  environment["OMP_NUM_THREADS"] = std::to_string(threads);
  // Spinning on a core that somebody else needs, another rank or another program, cost 40 to 300 times the step; waiting
  // passively costs microseconds an operation, and nothing with one thread.
  if (assigned.passive || threads > 1) environment.emplace("OMP_WAIT_POLICY", "passive");
  environment.emplace("CUDA_DEVICE_ORDER", "PCI_BUS_ID");  // GPUs are numbered as NVML numbers them
  // By UUID: numbers mean another GPU once some are hidden.
  const std::vector<std::string> shown = shown_gpus(assigned.job, process);
  if (!shown.empty()) environment["CUDA_VISIBLE_DEVICES"] = join(shown, ",");
  ProcessStart start;
  start.argv = {program};
  start.environment = std::move(environment);
  start.cores.assign(cores.begin(), cores.end());
  return start;
}

}  // namespace convoy
