// KernelTrace: the kernels and copies that a GPU executes while its object lives, from LibTorch's profiler (Kineto).
//
// One per process at a time: it has those of all GPUs and streams that the process uses. Threads: one thread creates
// it and calls `end`.
#pragma once
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "core/rank_state/time_breakdown.h"

namespace convoy {

class KernelTrace {
 public:
  // Begins to record on this kind of device. With at::kCPU it records the operators of the calling thread.
  // Returns null if another rank of the process records, or, with a warning in the log, if the profiler cannot start.
  static std::unique_ptr<KernelTrace> begin(at::Device device);
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // Waits for the device. Returns what it executed, on the steady clock, with a lane for each stream. Call it once.
  std::vector<TraceSlice> end();

 private:
  explicit KernelTrace(at::Device device) : device_(device) {}

  const at::Device device_;
  bool ended_ = false;
};

}  // namespace convoy
