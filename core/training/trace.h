// Trace of chosen steps: RUN/trace.json in the JSON format of Chrome, which Perfetto reads too. All ranks are on the
// clock of the control channel's server.
#pragma once
#include <cstdint>
#include <memory>

#include "core/context.h"
#include "core/training/kernel_trace.h"

namespace convoy {

class StepTrace {
 public:
  explicit StepTrace(const Context& context) : context_(context) {}

  // Call it at the begin of step `number`, from 1, on every rank. Collective at the end of the last traced step: rank 0
  // then writes the file.
  void begin_step(int64_t number);
  // Collective. Writes what was recorded, if the training ended before the last traced step.
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
