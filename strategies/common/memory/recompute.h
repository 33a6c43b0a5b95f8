// Activation checkpointing (key `recompute`): a block keeps only its inputs, and runs forward again in backward (Chen
// et al., arXiv:1604.06174, checkpointing by block).
// The graph has one node per block, which leads to its inputs and parameters. So the gradient of a parameter, tied or
// not, is complete when it reaches the accumulator. Nesting is allowed. A second derivative is refused.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/model_interface.h"
#include "strategies/common/layers/parameter.h"

namespace convoy {

using BlockForward = std::function<TensorList(const TensorList&)>;

// Runs `first` on `inputs` without its graph. During backward, `again` runs with a graph and must give the same results
// for equal inputs. `parameters`: all parameters of the block that require gradients. If no gradient is needed, only
// `first` runs.
TensorList recomputed(const BlockForward& first, BlockForward again, const TensorList& inputs,
                      const TensorList& parameters);

// State of a forward besides inputs and parameters: the position in the batch that keys random draws, and LibTorch's
// default generators if only this rank uses them.
class ForwardMoment {
 public:
  ForwardMoment(std::shared_ptr<ForwardState> state, at::Device device, bool own_generators);
  // Runs the block in the saved state. Then restores the state that it changes: buffers, generators, ForwardState.
  TensorList run(Block& block, const TensorList& inputs) const;

 private:
  std::shared_ptr<ForwardState> state_;
  ForwardState then_;
  std::vector<std::pair<at::Device, at::Tensor>> generators_;  // their states
};

// Throws Error(config) with the name of a module in the block that draws from LibTorch's default generator. Threads
// share that generator, so the draws cannot be repeated in the same order.
void check_recomputable(const Block& block, const std::string& name);

}  // namespace convoy
