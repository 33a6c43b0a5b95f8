// Optimizer: applies gradients to flat storage. What strategies share; they never see which one it is.
//
// Role: a slot is one contiguous buffer of parameters that have the same group (lr, weight decay), with its moments. One
// fused loop per slot and step. All scalars are tensors on the slot's device with a leading member dimension (1 without
// an ensemble), so a step reads nothing to the host and ensembles need no other code.
// Threads: one per rank, from which parallel loops start. Failure: none in a step but of our own making.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// One entry per member; [1] without an ensemble. float64 on the CPU, float32 on CUDA, unless stated.
struct UpdateScalars {
  at::Tensor learning_rate;   // of this step, before the group's factor
  at::Tensor step;            // updates applied, counting this one (from 1); int64
  at::Tensor gradient_scale;  // gradients are multiplied by it first (nominal ÷ actual, clipping, loss scale)
  at::Tensor apply;           // bool: false leaves parameters and moments untouched
};

// Gradient of a slot: dense, or rows of a table.
struct Gradient {
  at::Tensor dense;  // shape of the slot's values
  at::Tensor rows;   // int64 [n], unique; with `values` [n, width]
  at::Tensor values;
};

struct SlotOptions {
  int64_t members = 1;              // values: [members, elements] or [elements] when 1
  double learning_rate_factor = 1;  // of the parameter group
  double weight_decay = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // `values` (contiguous, any float dtype) stays the caller's and must keep its storage; returns the slot's index. Moments
  // start at zero, in the dtype of the values or in float for bf16 and fp16.
  virtual int add_slot(at::Tensor values, const SlotOptions& options) = 0;
  // A dense gradient may be overwritten. The result does not depend on the number of threads. Error(config) for rows
  // that this optimizer does not take.
  virtual void update(int slot, const Gradient& gradient, const UpdateScalars& scalars) = 0;
  // The slot's moments by name, each shaped as its values: shown to checkpoints through visit_state, writable.
  virtual std::vector<std::pair<std::string, at::Tensor>> moments(int slot) = 0;
};

// By the configuration's `optimizer`: sgd, adam, adamw.
std::unique_ptr<Optimizer> make_optimizer(const Component& optimizer);

// Parameter groups: options of the first group whose pattern matches the canonical name, else the defaults.
// Patterns are regular expressions searched anywhere in the name; ConfigError for one that is none.
struct GroupSettings {
  double learning_rate_factor = 1;
  double weight_decay = 0;
};
GroupSettings group_settings(const Component& optimizer, const std::string& parameter_name);

// Learning rate as a function of updates applied (from 0): constant, linear, cosine, step, each after a linear warm-up.
// Pure. Intervals in steps count updates.
class Schedule {
 public:
  Schedule(const Component& optimizer, int64_t total_updates, int64_t updates_per_epoch);
  double learning_rate(int64_t update) const;

 private:
  std::function<double(int64_t)> factor_;
  double base_ = 0;
};

}  // namespace convoy
