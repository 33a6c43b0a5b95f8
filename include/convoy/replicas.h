// Replicas: every rank holds the whole module and trains on its share of each global batch.
//
//   auto net = std::make_shared<Net>();
//   torch::optim::Adam adam(net->parameters(), 1e-3);
//   convoy::Replicas replicas(job, *net, adam);
//
// All ranks start with the parameters and buffers of rank 0. Gradients are all-reduced in buckets, during or after the
// backward pass (`overlap` in docs/strategies/ddp.md).
// The module may be of any class, with tied, frozen and unused parameters. A torch optimizer sees no gradient for a
// parameter until some rank has computed one. After that, the parameter gets zeros in steps without a gradient.
// Freezing or unfreezing a parameter later causes Error(config) in the next step.
// The optimizer may be any of torch::optim that steps by gradients alone, so not LBFGS. Checkpoints contain the state
// of SGD, Adam, AdamW, Adagrad, RMSprop and classes derived from them. With a torch optimizer on a GPU, each update
// waits for the device once, to learn if the gradients are finite. A fused optimizer does not wait.
// Calls, threads, errors: convoy/trained.h. Error(disagreement) if the ranks' modules differ in the name, shape, dtype
// or number of parameters.
#pragma once
#include "convoy/trained.h"

namespace convoy {

// Values that are not set have the defaults of the same keys in YAML (docs/config.md, strategy ddp).

struct OuterOptions {
  std::optional<double> lr, momentum;
  std::optional<bool> nesterov;
};

struct SyncRule {
  std::optional<std::string> what;  // gradients, parameters (local SGD) or diloco
  std::optional<int64_t> every;     // gradients: steps per update; else updates between synchronisations
  std::optional<int64_t> start_after;
  std::optional<std::string> moments;  // local or averaged
  OuterOptions outer;                  // outer optimizer of diloco
};
struct SyncGroupOptions : SyncRule {
  std::string match;  // regular expression, searched anywhere in a parameter's name
};
struct SyncOptions : SyncRule {
  std::optional<std::string> compress;   // none, fp16 or bf16: gradients in messages
  std::vector<SyncGroupOptions> groups;  // the first match decides; other parameters follow this SyncRule
};

struct ReplicaOptions {
  std::optional<double> clip_norm;  // scales gradients down to this norm over all parameters
  std::string precision;            // "": that of the parameters; bf16, fp16: products by autocast
  LossScaleOptions loss_scale;
  SyncOptions sync;
  std::optional<std::string> buffers;  // broadcast, mean or local
  std::optional<double> first_bucket_mb, bucket_cap_mb;
  std::optional<bool> overlap;
};

class Replicas : public Trained {
 public:
  // Collective along the axis `data`: all ranks, or those of Job::mesh.
  Replicas(Job& job, torch::nn::Module& module, torch::optim::Optimizer& optimizer, const ReplicaOptions& options = {});
  Replicas(Job& job, torch::nn::Module& module, const FusedOptimizer& optimizer, const ReplicaOptions& options = {});
};

}  // namespace convoy
