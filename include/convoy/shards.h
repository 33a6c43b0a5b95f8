// Shards: like Replicas, but ranks shard the optimizer state, gradients and parameters (ZeRO 1, 2 and 3).
//
//   stage 1   shards the optimizer's moments
//   stage 2   shards the gradients too
//   stage 3   shards the parameters too: each child of the module is gathered before its forward and its backward
//
// Stages 1 and 2 accept any module. Each direct child is a unit: its gradients are summed into the ranks' shards when
// its backward is complete, in the reverse order of registration. So register children in the order of forward.
// Stage 3 accepts a torch::nn::Sequential whose children map one tensor to one tensor. Call Shards::forward instead of
// the module's forward. Between steps and outside of forward its parameters have no memory: do not read them, and save
// them by Run only. The module is built whole before it is sharded.
// A torch optimizer must work element by element: SGD, Adam, AdamW, Adagrad, RMSprop, or a class derived from them. Its
// parameter groups then contain this rank's shards of the parameters. So save checkpoints by Run and not by
// torch::save.
// Calls, threads, errors: convoy/trained.h and convoy/replicas.h.
#pragma once
#include "convoy/trained.h"

namespace convoy {

// Values that are not set have the defaults of the same keys in YAML (docs/config.md, strategy fsdp).
struct ShardOptions {
  int stage = 3;
  std::optional<double> clip_norm;  // scales gradients down to this norm over all parameters
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
  // calls it equally often. A rank without rows calls it with an empty batch, or not at all before step() or
  // accumulate(). In evaluation mode it records no graph. Error(config) for other modules.
  at::Tensor forward(const at::Tensor& input);
};

}  // namespace convoy
