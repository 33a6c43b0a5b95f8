// GPUs of this host, found through NVML, which is loaded at run time. A host without a driver has no GPUs.
#pragma once
#include <sys/types.h>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/config/job_plan.h"
#include "launch/machine/environment.h"

namespace convoy {

// The functions of NVML's stable C interface that convoy uses. Threads: NVML's functions are thread-safe; construct and
// destroy Nvml in one thread at a time.
using NvmlDevice = void*;
struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned gpu, memory;  // per cent of the time
};
struct NvmlProcess {  // functions with the suffixes _v2 and _v3 fill it
  unsigned pid;
  unsigned long long memory;  // bytes; all bits set: unknown
  unsigned gpu_instance, compute_instance;
};
struct NvmlProcessSample {
  unsigned pid;
  unsigned long long time;  // microseconds, of the driver's clock
  unsigned multiprocessors, memory, encoder, decoder;
};

class Nvml {
 public:
  Nvml();
  ~Nvml();
  bool ready() const { return ready_; }  // false: no driver, or one that lacks a function that finds GPUs

  // Required functions; each returns 0 on success.
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  // Optional functions; null if the driver lacks them.
  int (*handle_by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*processes)(NvmlDevice, unsigned* count, NvmlProcess*) = nullptr;
  int (*process_samples)(NvmlDevice, NvmlProcessSample*, unsigned* count, unsigned long long since) = nullptr;

 private:
  template <class Function>
  void find(Function& function, const char* name);
  std::unique_ptr<void, int (*)(void*)> library_;
  int (*shutdown_)() = nullptr;
  bool ready_ = false;
};

// GPUs in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, which rank processes use.
std::vector<Gpu> find_gpus();

// GPUs that CUDA_VISIBLE_DEVICES leaves, in its order and numbered from 0; null (unset): all. Like CUDA, it stops at
// the first entry that names no GPU.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus, const char* visible_devices);

// Memory for CUDA contexts, kernels and NCCL, which limit_of_process does not cover: a GPU may hold this much in
// addition.
inline constexpr int64_t outside_allocator = int64_t{1} << 30;

// --- NVIDIA's Multi-Process Service (MPS) ---
//
// Processes that share a GPU are time-sliced, unless the user's MPS daemon runs. convoy looks for the daemon and
// reports it, but never starts it: that decision is the user's.

// Folder of the daemon's pipes: CUDA_MPS_PIPE_DIRECTORY, or CUDA's default. "": no daemon runs.
std::string mps_folder(const Variables& variables, const std::string& otherwise = "/tmp/nvidia-mps");

// "GPU 0 of dgx is shared by ranks 0 and 1: …". `mps`: mps_folder of that host, "" if unknown.
std::string shared_gpu_note(int gpu, const std::string& host, const std::string& sharers, const std::string& mps);

// One note for each GPU that several processes of the job use. `here`: the host to which `variables` belong.
std::vector<std::string> shared_gpu_notes(const JobPlan& job, const Topology& topology, const std::string& here,
                                          const Variables& variables);

// Reads the use of this host's GPUs by processes, through NVML. The first read opens NVML, which may take seconds if
// the driver must be loaded. Threads: one. Failure: values that the driver does not report are -1.

// Use of one GPU, in total and by process.
struct GpuReading {
  double use = -1;      // fraction of about the last second in which it was busy, 0…1
  int64_t memory = -1;  // bytes in use
  std::map<pid_t, double> use_by_process;
  std::map<pid_t, int64_t> memory_by_process;
};

// Use by one pipeline.
struct GpuShare {
  double use = -1;         // mean over its GPUs
  int64_t memory = -1;     // sum over them
  bool of_device = false;  // for at least one GPU the values may include other processes
};

// Use of the GPUs in `readings` by `processes`. `all_watched`: the processes of all pipelines. If the driver lists none
// of them for a GPU, as in a container with separate process ids, the result counts the whole device. `alone`: no other
// pipeline has these GPUs; work that the driver attributes to no process then counts for this one.
GpuShare share_of(const std::vector<GpuReading>& readings, const std::vector<pid_t>& processes,
                  const std::unordered_set<pid_t>& all_watched, bool alone);

class GpuUse {
 public:
  // Readings by UUID, without GPUs that cannot be read.
  std::map<std::string, GpuReading> read(const std::unordered_set<std::string>& uuids);

 private:
  struct Known {
    NvmlDevice device = nullptr;
    unsigned long long sampled = 0;  // time of the newest sample read
  };
  GpuReading read_one(Known& known);
  std::unique_ptr<Nvml> nvml_;
  std::map<std::string, Known> devices_;
};

}  // namespace convoy
