#include "launch/farm/monitor/gpu_use.h"

#include <algorithm>

namespace convoy {
namespace {

constexpr unsigned most_processes = 1024;
constexpr unsigned long long unavailable = ~0ULL;

template <class Value>
Value sum_of(const std::map<pid_t, Value>& all, const std::vector<pid_t>& processes, bool& found_any) {
  Value sum{};
  for (pid_t pid : processes) {
    const auto found = all.find(pid);
    if (found == all.end()) continue;
    sum += found->second;
    found_any = true;
  }
  return sum;
}

}  // namespace

std::map<std::string, GpuReading> GpuUse::read(const std::unordered_set<std::string>& uuids) {
  std::map<std::string, GpuReading> readings;
  if (uuids.empty()) return readings;
  if (!nvml_) nvml_ = std::make_unique<Nvml>();
  if (!nvml_->ready() || !nvml_->handle_by_uuid) return readings;
  for (const std::string& uuid : uuids) {
    Known& known = devices_[uuid];
    if (known.device == nullptr && nvml_->handle_by_uuid(uuid.c_str(), &known.device) != 0) continue;
    readings[uuid] = read_one(known);
  }
  return readings;
}

GpuReading GpuUse::read_one(Known& known) {
  GpuReading reading;
  NvmlUtilization utilization{};
  if (nvml_->utilization && nvml_->utilization(known.device, &utilization) == 0) reading.use = utilization.gpu / 100.0;
  NvmlMemory memory{};
  if (nvml_->memory(known.device, &memory) == 0) reading.memory = static_cast<int64_t>(memory.used);
  unsigned count = most_processes;
  std::vector<NvmlProcess> processes(count);
  if (nvml_->processes && nvml_->processes(known.device, &count, processes.data()) == 0)
    for (unsigned i = 0; i < std::min(count, most_processes); ++i)
      if (processes[i].memory != unavailable)
        reading.memory_by_process[static_cast<pid_t>(processes[i].pid)] += static_cast<int64_t>(processes[i].memory);
  count = most_processes;
  std::vector<NvmlProcessSample> samples(count);
  if (nvml_->process_samples && nvml_->process_samples(known.device, samples.data(), &count, known.sampled) == 0)
    for (unsigned i = 0; i < std::min(count, most_processes); ++i) {
      if (samples[i].multiprocessors > 100) continue;  // the driver's value for "no sample"
      reading.use_by_process[static_cast<pid_t>(samples[i].pid)] = samples[i].multiprocessors / 100.0;
      known.sampled = std::max(known.sampled, samples[i].time);
    }
  return reading;
}

GpuShare share_of(const std::vector<GpuReading>& readings, const std::vector<pid_t>& processes,
                  const std::unordered_set<pid_t>& all_watched, bool alone) {
  GpuShare share;
  int count = 0;
  for (const GpuReading& reading : readings) {
    bool ours = reading.memory_by_process.empty();
    for (const auto& [pid, bytes] : reading.memory_by_process) ours = ours || all_watched.count(pid) > 0;
    bool has_memory = false, has_use = false;
    const int64_t memory = sum_of(reading.memory_by_process, processes, has_memory);
    double use = sum_of(reading.use_by_process, processes, has_use);
    if (!ours || (alone && !has_use)) use = std::max(reading.use, 0.0);
    share.of_device = share.of_device || !ours;
    share.memory = std::max<int64_t>(share.memory, 0) + (ours ? memory : std::max<int64_t>(reading.memory, 0));
    share.use = (std::max(share.use, 0.0) * count + std::min(use, 1.0)) / (count + 1);
    ++count;
  }
  return share;
}

}  // namespace convoy
