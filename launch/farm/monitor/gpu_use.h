// Reads the use of this host's GPUs by processes, through NVML. The first read opens NVML, which may take seconds if
// the driver must be loaded. Threads: one. Failure: values that the driver does not report are -1.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "launch/machine/gpus.h"

namespace convoy {

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
  bool of_device = false;  // values are those of the whole device for at least one GPU
};

// Use of the GPUs in `readings` by `processes`. `all_watched`: the processes of all pipelines. If the driver lists none
// of them for a GPU, as in a container with its own process ids, the result counts the whole device. `alone`: no other
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
