// The JSON of a job contains every field: rank processes plan nothing themselves.
#include "core/config/job_plan.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/base/text.h"

namespace convoy {

void to_json(Json& json, DevicePlan::Kind kind) { json = kind == DevicePlan::Kind::gpu ? "gpu" : "cores"; }

void from_json(const Json& json, DevicePlan::Kind& kind) {
  const auto text = json.get<std::string>();
  if (text != "gpu" && text != "cores") throw Error(Failure::internal, "device of unknown kind '", text, "'");
  kind = text == "gpu" ? DevicePlan::Kind::gpu : DevicePlan::Kind::cores;
}

CONVOY_JSON(DevicePlan, kind, gpu, cores, uuid)
CONVOY_JSON(RankPlan, rank, host, process, devices, cores, threads)
CONVOY_JSON(ProcessPlan, host, ranks)
CONVOY_JSON(Axis, name, degree)

std::vector<std::string> visible_gpus(const JobPlan& job, int process) {
  std::vector<std::string> visible;
  for (int index : job.processes.at(static_cast<size_t>(process)).ranks) {
    for (const DevicePlan& device : job.ranks.at(static_cast<size_t>(index)).devices) {
      if (device.kind != DevicePlan::Kind::gpu) continue;
      if (device.uuid.empty()) return {};
      if (std::find(visible.begin(), visible.end(), device.uuid) == visible.end()) visible.push_back(device.uuid);
    }
  }
  return visible;
}

int gpu_index_in(const std::vector<std::string>& visible, const DevicePlan& device) {
  const auto found = std::find(visible.begin(), visible.end(), device.uuid);
  return found == visible.end() ? device.gpu : static_cast<int>(found - visible.begin());
}

namespace {

// Host and index of each GPU that ranks of a process use.
std::set<std::pair<int, int>> gpus_of(const JobPlan& job, const ProcessPlan& process) {
  std::set<std::pair<int, int>> gpus;
  for (int index : process.ranks) {
    const RankPlan& rank = job.ranks.at(static_cast<size_t>(index));
    for (const DevicePlan& device : rank.devices)
      if (device.kind == DevicePlan::Kind::gpu) gpus.emplace(rank.host, device.gpu);
  }
  return gpus;
}

}  // namespace

int64_t gpu_memory_limit(const std::map<std::string, std::string>& variables) {
  const auto found = variables.find(gpu_memory_variable);
  if (found == variables.end()) return 0;
  const std::string& text = found->second;
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size() || bytes <= 0)
    throw Error(Failure::command_line, gpu_memory_variable, "=", text,
                " must be a positive number of bytes; only farms set this variable: unset it");
  return bytes;
}

int64_t limit_of_process(const JobPlan& job, int process, int64_t limit) {
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

Json to_json(const JobPlan& job) {
  return {{"name", job.name},        {"ranks", job.ranks},     {"processes", job.processes},
          {"mesh", job.mesh.axes()}, {"backend", job.backend}, {"config", job.config.resolved}};
}

JobPlan job_from_json(const Json& json) {
  try {
    return {json.at("name"),      json.at("ranks"),
            json.at("processes"), Mesh(json.at("mesh").get<std::vector<Axis>>()),
            json.at("backend"),   RunConfig::from_resolved(json.at("config"))};
  } catch (const Json::exception& error) {
    throw Error(Failure::internal, "cannot read this job description: ", error.what(),
                "; are convoy and convoy-rank of the same build?");
  }
}

}  // namespace convoy
