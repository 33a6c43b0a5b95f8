// Shards: as Replicas, but the ranks shard what each of them would hold whole (ZeRO 1, 2 and 3).
//
//   stage 1   the optimizer's moments
//   stage 2   also the gradients
//   stage 3   also the parameters: each child of the module is gathered before its forward and before its backward
//
// Stages 1 and 2 take any module. Each direct child is a unit: its gradients are summed into the ranks' shards as soon
// as its backward is complete, in the reverse order of registration. So register children in the order of forward.
// Stage 3 takes a torch::nn::Sequential whose children map one tensor to one tensor, and Shards::forward instead of the
// module's own forward. Between steps and outside of forward its parameters have no memory: do not read them, and save
// them by Run only. The module is built whole before it is sharded.
// A torch optimizer must work element by element: SGD, Adam, AdamW, Adagrad, RMSprop, or a class derived from them. Its
// parameter groups then hold this rank's pieces of the parameters, so checkpoints come from Run and not from
// torch::save.
// Calls, threads, errors: convoy/trained.h and convoy/replicas.h.
#pragma once
#include "convoy/trained.h"

namespace convoy {

// Values that are not set have the defaults of the same keys in a YAML file (docs/config.md, strategy fsdp).
struct ShardOptions {
  int stage = 3;
  std::optional<double> clip_norm;  // gradients are scaled down to this norm over all parameters
  std::string precision;            // "": that of the parameters; bf16, fp16: products by autocast
  LossScaleOptions loss_scale;
  std::optional<std::string> buffers;         // broadcast, mean or local
  std::optional<bool> reshard_after_forward;  // stage 3
  std::optional<bool> overlap;
};

class Shards : public Trained {
 public:
  // Collective along the axis `data`: all ranks, or those of Job::mesh.
  Shards(Job& job, torch::nn::Module& module, torch::optim::Optimizer& optimizer, const ShardOptions& options = {});
  Shards(Job& job, torch::nn::Module& module, const FusedOptimizer& optimizer, const ShardOptions& options = {});

  // Calls the children of a Sequential in order, in this object's precision. In stage 3 it is collective: each rank
  // calls it equally often, a rank without rows with an empty batch or not at all before step() or accumulate(). If the
  // module is in evaluation mode, there is no graph. Error(config) for another module.
  at::Tensor forward(const at::Tensor& input);
};

}  // namespace convoy
