// BlockBorders: told by whoever leads tensors through the blocks of a part where a forward stands; may change what
// goes from block to block. For layers whose work depends on more than their input.
//
// Call order: begin; enter for each block in the model's order; leave. `again` in front of a block that is run once
// more, by recomputation, at any time. The same on all ranks that share the part. Threads: that which runs the
// forward.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace convoy {

class BlockBorders {
 public:
  using Tensors = std::vector<at::Tensor>;
  virtual ~BlockBorders() = default;

  virtual void begin() = 0;                                             // in front of a part's first block
  virtual Tensors enter(const std::string& block, Tensors inputs) = 0;  // in front of a block
  virtual void again(const std::string& block) = 0;  // its inputs are those that `enter` gave when it ran first
  virtual Tensors leave(Tensors outputs) = 0;        // behind the part's last block
};

}  // namespace convoy
