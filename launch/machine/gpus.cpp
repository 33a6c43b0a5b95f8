#include "launch/machine/gpus.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/files.h"

namespace convoy {
namespace {

// Turns NVML's "00000000:3B:00.0" into the kernel's "0000:3b:00.0".
std::string kernel_address(std::string nvml) {
  if (nvml.size() > 12) nvml = nvml.substr(nvml.size() - 12);
  std::transform(nvml.begin(), nvml.end(), nvml.begin(), [](unsigned char c) { return std::tolower(c); });
  return nvml;
}

int numa_node(const std::string& pci) {
  std::ifstream file(str("/sys/bus/pci/devices/", pci, "/numa_node"));
  int node = -1;  // also on hosts with one node
  return file >> node ? node : -1;
}

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

template <class Function>
void Nvml::find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library_.get(), name));
}

Nvml::Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), &dlclose) {
  if (!library_) return;
  int (*init)() = nullptr;
  find(init, "nvmlInit_v2");
  find(shutdown_, "nvmlShutdown");
  find(count, "nvmlDeviceGetCount_v2");
  find(handle, "nvmlDeviceGetHandleByIndex_v2");
  find(uuid, "nvmlDeviceGetUUID");
  find(pci, "nvmlDeviceGetPciInfo_v3");
  find(memory, "nvmlDeviceGetMemoryInfo");
  find(handle_by_uuid, "nvmlDeviceGetHandleByUUID");
  find(utilization, "nvmlDeviceGetUtilizationRates");
  find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (!processes) find(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
  find(process_samples, "nvmlDeviceGetProcessUtilization");
  ready_ = init && shutdown_ && count && handle && uuid && pci && memory && init() == 0;
}

Nvml::~Nvml() {
  if (ready_) shutdown_();
}

std::vector<Gpu> find_gpus() {
  std::vector<Gpu> gpus;
  const Nvml nvml;
  unsigned count = 0;
  if (!nvml.ready() || nvml.count(&count) != 0) return gpus;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    NvmlPci pci{};
    NvmlMemory memory{};
    char uuid[96] = "";
    if (nvml.handle(i, &device) != 0 || nvml.uuid(device, uuid, sizeof uuid) != 0 || nvml.pci(device, &pci) != 0 ||
        nvml.memory(device, &memory) != 0)
      continue;  // fallen off the bus
    Gpu gpu;
    gpu.index = static_cast<int>(gpus.size());
    gpu.uuid = uuid;
    gpu.pci = kernel_address(pci.bus_id);
    gpu.numa = numa_node(gpu.pci);
    gpu.memory = static_cast<int64_t>(memory.total);
    gpus.push_back(gpu);
  }
  return gpus;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus, const char* visible_devices) {
  if (visible_devices == nullptr) return gpus;
  std::vector<Gpu> visible;
  std::istringstream list(visible_devices);
  for (std::string word; std::getline(list, word, ',');) {
    word.erase(std::remove_if(word.begin(), word.end(), [](unsigned char c) { return std::isspace(c); }), word.end());
    char* end = nullptr;
    const long index = std::strtol(word.c_str(), &end, 10);
    const bool number = !word.empty() && *end == '\0';
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return number ? gpu.index == index : !word.empty() && gpu.uuid.rfind(word, 0) == 0;
    });
    if (found == gpus.end()) break;
    visible.push_back(*found);
    visible.back().index = static_cast<int>(visible.size()) - 1;
  }
  return visible;
}

// The daemon writes its process id to a file and removes the file at its end. In a container the id may be meaningless:
// if the user names the folder, the file suffices.
std::string mps_folder(const Variables& variables, const std::string& otherwise) {
  const auto given = variables.find("CUDA_MPS_PIPE_DIRECTORY");
  const bool named = given != variables.end() && !given->second.empty();
  const std::string folder = named ? given->second : otherwise;
  std::istringstream file(
      read_file_if_any(folder + "/nvidia-cuda-mps-control.pid", 64));  // a shared folder's may be a FIFO
  pid_t daemon = 0;
  if (!(file >> daemon) || daemon <= 0) return "";
  const bool alive = kill(daemon, 0) == 0 || errno == EPERM;
  return alive || named ? folder : "";
}

std::string shared_gpu_note(int gpu, const std::string& host, const std::string& sharers, const std::string& mps) {
  return str("GPU ", gpu, " of ", host, " is shared by ", sharers,
             mps.empty()
                 ? ": they are time-sliced, because no MPS daemon was found; `nvidia-cuda-mps-control -d` starts one, "
                   "under which they use it at the same time"
                 : ": at the same time, through the MPS daemon of " + mps);
}

std::vector<std::string> shared_gpu_notes(const JobPlan& job, const Topology& topology, const std::string& here,
                                          const Variables& variables) {
  std::map<std::pair<int, int>, std::set<int>> processes;  // by host and GPU
  std::map<std::pair<int, int>, std::vector<int>> ranks;
  for (const RankPlan& rank : job.ranks) {
    for (const DevicePlan& device : rank.devices) {
      if (device.kind != DevicePlan::Kind::gpu) continue;
      processes[{rank.host, device.gpu}].insert(rank.process);
      ranks[{rank.host, device.gpu}].push_back(rank.rank);
    }
  }
  std::vector<std::string> notes;
  for (const auto& [key, sharers] : processes) {
    if (sharers.size() < 2) continue;
    const std::string& host = topology.hosts.at(static_cast<size_t>(key.first)).name;
    notes.push_back(shared_gpu_note(key.second, host, "ranks " + ranks_text(ranks[key]),
                                    host == here ? mps_folder(variables) : ""));
  }
  return notes;
}

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
