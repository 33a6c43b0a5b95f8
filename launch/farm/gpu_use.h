// What processes use of this host's GPUs, through NVML. Opened when it is first asked, since that may take seconds where
// the driver is not loaded all the time. Threads: one. Failure: what the driver does not tell is -1.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "launch/nvml.h"

namespace convoy {

// Of one GPU, as a whole and by process.
struct GpuReading {
  double use = -1;      // share of the last second or so in which it had work, 0…1
  int64_t memory = -1;  // bytes taken
  std::map<pid_t, double> use_by_process;
  std::map<pid_t, int64_t> memory_by_process;
};

// A pipeline's part.
struct GpuShare {
  double use = -1;         // mean over its GPUs
  int64_t memory = -1;     // sum over them
  bool of_device = false;  // of at least one the figures are those of the whole device
};

// What `processes` take of the GPUs in `readings`. `everyone`: all processes that are watched; where the driver names none
// of them among a GPU's users, they are told by ids of another name space, as in a container, or are none of ours, and the
// whole device is told. `alone`: GPUs that no other pipeline was given; their work is its own where the driver tells it by
// no process.
GpuShare share_of(const std::vector<GpuReading>& readings, const std::vector<pid_t>& processes,
                  const std::unordered_set<pid_t>& everyone, bool alone);

class GpuUse {
 public:
  // The GPUs of these UUIDs; those that cannot be read are left out.
  std::map<std::string, GpuReading> read(const std::unordered_set<std::string>& uuids);

 private:
  struct Known {
    NvmlDevice device = nullptr;
    unsigned long long sampled = 0;  // the newest sample seen
  };
  GpuReading read_one(Known& known);
  std::unique_ptr<Nvml> nvml_;
  std::map<std::string, Known> devices_;
};

}  // namespace convoy
