// BlockHooks: what is done around the blocks of a part, such as gathering their parameters and giving them back.
//
// Call order, forward: before_forward and after_forward for each block in order, with a graph (GradMode) or without.
// Backward of one forward: begin_backward; backward_at with falling borders; end_backward. Border i lies in front of block
// i: what lies behind it has been differentiated, block i−1 is next. Borders over which no gradient passes are left out, so
// that whoever must do the same on every rank makes up for those in between.
// Threads: that which runs the forward or backward.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/model_interface.h"

namespace convoy {

class BlockHooks {
 public:
  virtual ~BlockHooks() = default;
  virtual void before_forward(int64_t block) = 0;  // within the part
  virtual void after_forward(int64_t block) = 0;
  virtual void begin_backward() = 0;
  virtual void backward_at(int64_t border) = 0;
  virtual void end_backward() = 0;
};

// The same values. `reached` is called by a backward once the gradients of all of them are there, in front of what made
// them; it is not called where none wants a gradient.
TensorList with_border(const TensorList& values, std::function<void()> reached);

}  // namespace convoy
