// Recomputation: a block keeps its inputs alone, and is run once more when its gradients are wanted (Chen et al.,
// arXiv:1604.06174, checkpointing by block).
//
// The graph has one node for the block, which leads to its inputs and its parameters, so that a parameter's gradient is
// complete, tied or not, when its accumulator is reached. Nests. A second derivative through it is refused.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model_interface.h"
#include "core/options.h"
#include "strategies/parts/parameter.h"

namespace convoy {

// Which blocks are recomputed.
struct Recompute {
  bool all = false;
  std::vector<std::string> names;  // of blocks, where not all

  bool includes(const std::string& block) const;
};
// Of a strategy that has recompute_option() (parts/replicas/replicated_entry.h), as check_recompute() let it pass.
Recompute recompute_of(const Options& strategy);

using BlockForward = std::function<TensorList(const TensorList&)>;

// What `first` makes of `inputs`, without its graph; `again` must make the same of equal inputs, with one, during backward.
// `parameters`: all that the block uses and that want gradients. As `first` alone where there is nothing to differentiate.
TensorList recomputed(const BlockForward& first, BlockForward again, const TensorList& inputs,
                      const TensorList& parameters);

// What a block's forward depends on beside its inputs and parameters, as it was at the time: the place in the batch that
// keys random draws, and LibTorch's default generators where this rank has them for itself.
class ForwardMoment {
 public:
  ForwardMoment(std::shared_ptr<ForwardState> state, at::Device device, bool own_generators);
  // Runs the block as it was then: what it changes (buffers, generators, the state) is put back.
  TensorList run(Block& block, const TensorList& inputs) const;

 private:
  std::shared_ptr<ForwardState> state_;
  ForwardState then_;
  std::vector<std::pair<at::Device, at::Tensor>> generators_;  // their states
};

// Throws Error(config) naming a module within the block that draws from LibTorch's default generator, which could not be
// drawn from again in the same order where threads share it.
void check_recomputable(const Block& block, const std::string& name);

}  // namespace convoy
