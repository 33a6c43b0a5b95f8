// Trained: a module and its optimizer, trained by all ranks together. Base class of Replicas and Shards.
//
// A loss is a sum over rows, never a mean: `step` receives the sum and the number of rows, or the weight. The gradient
// is that of the sum over all ranks, divided by the weight over all ranks. So shares may differ in size, and a rank
// without rows calls step() as well.
//
//   replicas.step(loss_sum(net->forward(batch.data), batch.target), batch.rows);
//
// `step` calls backward() on this loss and step() of the optimizer; do not call them yourself. Adam, AdamW, Adagrad and
// RMSprop count their steps, so there a call of your own is Error(training) in the next step; with SGD nothing detects
// it. Learning-rate schedulers work as usual.
// Call order: every rank makes the same number of calls of step and accumulate, in the same order.
// Threads: the thread of the rank.
// Ownership: module, optimizer and job outlive this object; it keeps a module alive that a shared_ptr owns. Parameters
// stay the same tensor objects; their memory moves.
// Errors: CommError if a peer is gone, too slow, or made a different call. Error(training) with rank and step if a loss
// or a gradient is not finite; then nothing was updated. After either, only destruction is allowed.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

class Job;

// A set of parameters with a separate learning rate or weight decay.
struct FusedGroup {
  std::string match;  // regular expression, searched anywhere in a parameter's name
  std::optional<double> lr, weight_decay;
};

// An optimizer of convoy, which updates all parameters in one loop: sgd, adam, adamw or adagrad. Values that are not
// set have the defaults of the same keys in YAML (docs/config.md, section optimizer).
struct FusedOptimizer {
  explicit FusedOptimizer(std::string optimizer, std::optional<double> rate = {})
      : name(std::move(optimizer)), lr(rate) {}

  std::string name;
  std::optional<double> lr, weight_decay, momentum, eps;
  std::optional<bool> nesterov;
  std::optional<std::pair<double, double>> betas;
  std::vector<FusedGroup> groups;  // a parameter belongs to the first group that matches
};

// Dynamic factor on the loss under fp16. Values that are not set have the defaults of strategy.loss_scale.
struct LossScaleOptions {
  std::optional<double> initial, growth, backoff;
  std::optional<int64_t> growth_interval;
};

// Tensors are on the device of the rank; reading one waits for the device.
struct StepReport {
  bool updated = false;      // false: gradients were accumulated
  at::Tensor gradient_norm;  // [], norm of the mean gradient before clipping; undefined without an update
  at::Tensor skipped;        // bool [], fp16: gradients overflowed and nothing was updated; else undefined
};

// Runs products in half precision during its lifetime; destroy it before `step`. Has no effect in other precisions.
class Autocast {
 public:
  Autocast(Autocast&&) noexcept;
  ~Autocast();

 private:
  friend class Trained;
  struct Impl;
  explicit Autocast(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Puts the module into evaluation mode during its lifetime, with the parameters that a checkpoint would contain. Under
// local training (SyncOptions::what) these are the mean over ranks. Creating one is collective.
class Evaluation {
 public:
  Evaluation(Evaluation&&) noexcept;
  ~Evaluation();

 private:
  friend class Trained;
  struct Impl;
  explicit Evaluation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Trained {
 public:
  virtual ~Trained();
  Trained(const Trained&) = delete;
  Trained& operator=(const Trained&) = delete;

  // Runs backward, sums gradients over ranks and updates. `loss_sum`: one number, the sum over this rank's rows.
  // `weight`: one number without graph, such as the number of tokens that count.
  StepReport step(const at::Tensor& loss_sum, int64_t rows);
  StepReport step(const at::Tensor& loss_sum, const at::Tensor& weight);
  // Does the same on a rank without rows.
  StepReport step();

  // Runs backward only. The next `step` makes one update of all gradients since the last one.
  void accumulate(const at::Tensor& loss_sum, int64_t rows);
  void accumulate(const at::Tensor& loss_sum, const at::Tensor& weight);
  void accumulate();

  // Returns the Autocast for forward passes of precision bf16 and fp16.
  Autocast autocast() const;
  Evaluation evaluation();

  // Returns the learning rate of the first parameter group.
  double learning_rate() const;
  // Sets the learning rate of a fused optimizer from the next update on; the rates of its groups change in proportion.
  // A checkpoint has this rate. Error(config) for a torch optimizer: set the rate there.
  void set_learning_rate(double rate);
  int64_t updates() const;  // number so far, with skipped ones
  // Returns the module that the constructor received.
  torch::nn::Module& module() const;

  // Internal: api/trained_impl.h.
  struct Impl;
  Impl& impl() const { return *impl_; }

 protected:
  explicit Trained(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
