#include "core/binding.h"

#include <sched.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace convoy {
namespace {
constexpr int max_units = 8192;

// Freed with its scope; CPU_ALLOC's size holds more units than the fixed cpu_set_t.
struct CpuSet {
  cpu_set_t* set = CPU_ALLOC(max_units);
  size_t size = CPU_ALLOC_SIZE(max_units);
  CpuSet() { CPU_ZERO_S(size, set); }
  ~CpuSet() { CPU_FREE(set); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
};
}  // namespace

void bind_this_thread(const std::vector<int>& cores) {
  if (cores.empty()) return;
  CpuSet wanted;
  for (int core : cores) CPU_SET_S(static_cast<size_t>(core), wanted.size, wanted.set);
  if (sched_setaffinity(0, wanted.size, wanted.set) != 0)
    throw Error(Failure::config, str("launch: cannot bind to the ", cores.size(), " cores from ", cores.front(),
                                     " on: ", std::strerror(errno), "; try --set launch.bind=none"));
}

std::vector<int> bound_cores() {
  CpuSet now;
  std::vector<int> cores;
  if (sched_getaffinity(0, now.size, now.set) != 0) return cores;
  for (int core = 0; core < max_units; ++core)
    if (CPU_ISSET_S(static_cast<size_t>(core), now.size, now.set)) cores.push_back(core);
  return cores;
}

}  // namespace convoy
