// Traces: KernelTrace records what a GPU executes, and StepTrace writes the trace of the steps that the user names.
#pragma once
#include <c10/core/Device.h>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/context.h"
#include "core/rank_state/time_breakdown.h"

namespace convoy {

// --- KernelTrace: the kernels and copies that a GPU executes ---

// Records while the object lives, by LibTorch's profiler (Kineto). One per process at a time: it has the kernels of all
// GPUs and streams that the process uses. Threads: one thread creates it and calls `end`.
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

// --- StepTrace: the trace of the steps of profile.steps ---

// Writes RUN/trace.json in the JSON format of Chrome, which Perfetto reads too. All ranks are on the clock of the
// control channel's server.
class StepTrace {
 public:
  explicit StepTrace(const Context& context) : context_(context) {}

  // Call it on every rank when step `number`, from 1, begins. Collective if `number` is the step after the last traced
  // one: rank 0 then writes the file.
  void begin_step(int64_t number);
  // Collective. If a traced step has not ended, ends it and writes the file.
  void end();

 private:
  void write();

  const Context& context_;
  int64_t from_ = 0, to_ = 0;             // first and last recorded step; 0: none
  bool begun_ = false;                    // a step has begun
  int64_t step_ = 0, began_ = 0;          // number and begin of the current step; 0: it is not traced
  std::unique_ptr<KernelTrace> kernels_;  // null: the rank has no GPU, or another one of the process records
};

}  // namespace convoy
