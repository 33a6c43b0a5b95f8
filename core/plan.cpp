// A job as it travels to the rank processes. Every field is written and read: ranks plan nothing themselves.
#include "core/plan.h"

#include <algorithm>

namespace convoy {
namespace {

Json to_json(const DevicePlan& device) {
  return {{"kind", device.kind == DevicePlan::Kind::gpu ? "gpu" : "cores"},
          {"gpu", device.gpu},
          {"cores", device.cores},
          {"uuid", device.uuid}};
}

DevicePlan device_from_json(const Json& json) {
  DevicePlan device;
  const auto kind = json.at("kind").get<std::string>();
  if (kind != "gpu" && kind != "cores") throw Error(Failure::internal, str("device of unknown kind '", kind, "'"));
  device.kind = kind == "gpu" ? DevicePlan::Kind::gpu : DevicePlan::Kind::cores;
  device.gpu = json.at("gpu").get<int>();
  device.cores = json.at("cores").get<std::vector<int>>();
  device.uuid = json.at("uuid").get<std::string>();
  return device;
}

Json to_json(const RankPlan& rank) {
  Json devices = Json::array();
  for (const DevicePlan& device : rank.devices) devices.push_back(to_json(device));
  return {{"rank", rank.rank},  {"host", rank.host},   {"process", rank.process},
          {"devices", devices}, {"cores", rank.cores}, {"threads", rank.threads}};
}

RankPlan rank_from_json(const Json& json) {
  RankPlan rank;
  rank.rank = json.at("rank").get<int>();
  rank.host = json.at("host").get<int>();
  rank.process = json.at("process").get<int>();
  for (const Json& device : json.at("devices")) rank.devices.push_back(device_from_json(device));
  rank.cores = json.at("cores").get<std::vector<int>>();
  rank.threads = json.at("threads").get<int>();
  return rank;
}

Job parse_job(const Json& json) {
  Job job;
  job.name = json.at("name").get<std::string>();
  for (const Json& rank : json.at("ranks")) job.ranks.push_back(rank_from_json(rank));
  for (const Json& process : json.at("processes")) {
    job.processes.push_back({process.at("host").get<int>(), process.at("ranks").get<std::vector<int>>()});
  }
  std::vector<Axis> axes;
  for (const Json& axis : json.at("mesh")) {
    axes.push_back({axis.at("name").get<std::string>(), axis.at("degree").get<int>()});
  }
  job.mesh = Mesh(std::move(axes));
  job.backend = json.at("backend").get<std::string>();
  job.config = json.at("config");
  return job;
}

}  // namespace

std::vector<std::string> shown_gpus(const Job& job, int process) {
  std::vector<std::string> shown;
  for (int index : job.processes.at(static_cast<size_t>(process)).ranks) {
    for (const DevicePlan& device : job.ranks.at(static_cast<size_t>(index)).devices) {
      if (device.kind != DevicePlan::Kind::gpu) continue;
      if (device.uuid.empty()) return {};
      if (std::find(shown.begin(), shown.end(), device.uuid) == shown.end()) shown.push_back(device.uuid);
    }
  }
  return shown;
}

int gpu_within(const std::vector<std::string>& shown, const DevicePlan& device) {
  const auto found = std::find(shown.begin(), shown.end(), device.uuid);
  return found == shown.end() ? device.gpu : static_cast<int>(found - shown.begin());
}

Json to_json(const Job& job) {
  Json ranks = Json::array();
  for (const RankPlan& rank : job.ranks) ranks.push_back(to_json(rank));
  Json processes = Json::array();
  for (const ProcessPlan& process : job.processes) {
    processes.push_back({{"host", process.host}, {"ranks", process.ranks}});
  }
  Json mesh = Json::array();
  for (const Axis& axis : job.mesh.axes()) mesh.push_back({{"name", axis.name}, {"degree", axis.degree}});
  return {{"name", job.name}, {"ranks", ranks},         {"processes", processes},
          {"mesh", mesh},     {"backend", job.backend}, {"config", job.config}};
}

Job job_from_json(const Json& json) {
  try {
    return parse_job(json);
  } catch (const Json::exception& error) {
    throw Error(Failure::internal, str("this is not a job as convoy writes it: ", error.what(),
                                       "; are convoy and convoy-rank of the same build?"));
  }
}

}  // namespace convoy
