// Optimizer: applies gradients to flat storage. Strategies use this interface and do not know the update rule.
//
// A slot is one contiguous range of parameters of one group (lr, weight decay), with its moments. There is one fused
// loop per slot and update. All scalars are tensors on the slot's device, with a leading member dimension (1 without an
// ensemble). So an update copies nothing to the host, and ensembles need no extra code.
// Threads: one per rank, from which parallel loops start. Failure: a step throws only on errors in convoy itself.
#pragma once
#include <ATen/core/Tensor.h>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// One entry per member; [1] without an ensemble. float64 on the CPU, float32 on CUDA, unless stated.
struct UpdateScalars {
  at::Tensor learning_rate;   // rate of this step, before the group's factor
  at::Tensor step;            // number of updates applied, with this one (from 1); int64
  at::Tensor gradient_scale;  // factor on the gradients (nominal ÷ actual weight, clipping, loss scale)
  at::Tensor apply;           // bool: false leaves parameters and moments untouched
};

// Gradient of a slot: dense, or rows of a table.
struct Gradient {
  at::Tensor dense;  // shape of the slot's values
  at::Tensor rows;   // int64 [n], unique; with `values` [n, width]
  at::Tensor values;
};

// Elements [begin, end) of a parameter, row-major, and their position in a slot.
struct ParameterPiece {
  at::Tensor parameter;
  int64_t begin = 0, end = 0;
  int64_t offset = 0;
};

struct SlotOptions {
  int64_t members = 1;              // values: [members, elements] or [elements] when 1
  double learning_rate_factor = 1;  // factor of the parameter group
  double weight_decay = 0;
  std::vector<ParameterPiece> pieces = {};  // for optimizers that know parameters (torch_optimizer.h)
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // `values` (contiguous, any float dtype) belongs to the caller and must keep its storage. Returns the slot's index.
  // Moments start at zero, in the dtype of the values, or in float for bf16 and fp16.
  virtual int add_slot(at::Tensor values, const SlotOptions& options) = 0;
  // Sets one weight decay per member of the slot, from the next update on.
  virtual void set_weight_decays(int slot, const std::vector<double>& decays) = 0;
  // May overwrite a dense gradient. The result does not depend on the number of threads. Error(config) if this
  // optimizer does not support rows.
  virtual void update(int slot, const Gradient& gradient, const UpdateScalars& scalars) = 0;
  // Called after the last slot of an update.
  virtual void finish() {}
  // Returns the slot's moments by name, each in the shape of its values; writable. visit_state passes them to
  // checkpoints.
  virtual NamedTensors moments(int slot) = 0;
  // Returns counters besides the number of updates, by name; writable.
  virtual NamedTensors counters() const { return {}; }
  // Called after moments and counters were written from outside. `updates`: number applied so far.
  virtual void restored(int64_t /*updates*/) {}
  // Returns the rate of the next update if the optimizer chooses it; otherwise it uses that of UpdateScalars.
  virtual std::optional<double> learning_rate() const { return std::nullopt; }
  // True if an update multiplies the gradients by UpdateScalars::gradient_scale in place.
  virtual bool scales_gradients() const { return false; }
};

// Creates the optimizer of the configuration: sgd, adam, adamw, adagrad.
std::unique_ptr<Optimizer> make_optimizer(const Component& optimizer);
// Creates an optimizer instead of the configured one; null: the configured one.
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>()>;

// Options of the first parameter group that matches the canonical name, or the defaults. Patterns are regular
// expressions that match anywhere in the name; ConfigError for an invalid one.
struct GroupSettings {
  double learning_rate_factor = 1;
  double weight_decay = 0;
};
struct OptimizerOptions;  // core/optim/catalogue/catalogue.h
GroupSettings group_settings(const OptimizerOptions& options, const std::string& parameter_name);

// UpdateCount: converts steps to updates. `every` steps make one update; the remaining steps of an epoch make one more.
// Schedules count updates.
struct UpdateCount {
  int64_t steps_per_epoch = 1;
  int64_t every = 1;

  int64_t of(int64_t steps) const {
    const int64_t epoch = std::max<int64_t>(steps_per_epoch, 1);
    return steps / epoch * rounded_up(epoch) + rounded_up(steps % epoch);
  }

 private:
  int64_t rounded_up(int64_t steps) const { return (steps + every - 1) / every; }
};

// Schedule: the learning rate as a function of updates applied (from 0): constant, linear, cosine, step, each after a
// linear warm-up. Pure. Intervals in steps are converted to updates.
class Schedule {
 public:
  Schedule(const Component& optimizer, int64_t total_updates, int64_t updates_per_epoch);
  double learning_rate(int64_t update) const;

 private:
  std::function<double(int64_t)> factor_;
  double base_ = 0;
};

}  // namespace convoy
