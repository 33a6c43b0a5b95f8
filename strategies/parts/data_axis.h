// DataAxis: how the gradients of this rank's parameters become an update, together with the ranks along the axis `data`.
//
// Call order: begin; then for each micro-batch add_loss (on ranks that have the loss) and backward, with last_backward in
// front of each part's last one; update when `begin` was told so; the same on all ranks. Threads: the rank's own, and its
// backward. Failure: CommError.
#pragma once
#include "core/model_interface.h"
#include "core/state.h"
#include "strategies/parts/update.h"

namespace convoy {

class DataAxis {
 public:
  virtual ~DataAxis() = default;

  // A step begins. `first`: of an accumulation, whose gradients overwrite what was there. `updates`: it ends with one.
  virtual void begin(bool first, bool updates) = 0;
  virtual void add_loss(const Loss& loss) = 0;
  // The next backward of this part is its last in this step: what it finishes may be sent.
  virtual void last_backward(int part) = 0;
  // Behind the last backward of a step without an update.
  virtual void keep() = 0;
  // Reduces what has not been, and updates. `nominal`: what the losses were divided by for backward; `told`: StepInput's.
  virtual UpdateFigures update(double nominal, bool told) = 0;

  virtual void settle() = 0;
  virtual void settle_for_evaluation() { settle(); }  // Strategy's
  virtual void visit_state(const StateVisitor& visit) = 0;
  virtual void state_restored() = 0;
  virtual void renumbered(int64_t steps) = 0;  // Strategy's
};

}  // namespace convoy
