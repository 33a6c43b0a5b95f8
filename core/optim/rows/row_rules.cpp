// Row optimizers: row_adagrad, row_adam and row_sgd.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <cmath>

#include "core/base/error.h"
#include "core/optim/rows/row_base.h"

namespace convoy {
namespace {

// Implements the functions for each dtype by templates of a rule. Only rules whose missed updates are not one product
// have `replay_updates`.
template <class Rule>
class RowRule : public RowBase {
 protected:
  using RowBase::RowBase;
  void loop(const RowList<float>& list, const float* gradient, float* out, const SlotOptions& options,
            const HostScalars& scalars) const final {
    rule().run_loop(list, gradient, out, options, scalars);
  }
  void loop(const RowList<double>& list, const double* gradient, double* out, const SlotOptions& options,
            const HostScalars& scalars) const final {
    rule().run_loop(list, gradient, out, options, scalars);
  }
  void replay(float* values, float* first, float* second, int64_t n, const MissedUpdate* updates,
              int64_t count) const final {
    rule().replay_updates(values, first, second, n, updates, count);
  }
  void replay(double* values, double* first, double* second, int64_t n, const MissedUpdate* updates,
              int64_t count) const final {
    rule().replay_updates(values, first, second, n, updates, count);
  }
  template <class T>
  void replay_updates(T*, T*, T*, int64_t, const MissedUpdate*, int64_t) const {
    CONVOY_CHECK(false, "this rule combines missed updates");
  }

 private:
  const Rule& rule() const { return static_cast<const Rule&>(*this); }
};

// --- row_adagrad: Adagrad for rows. A row without gradient does not change, so no update is ever missed. ---

class RowAdagrad : public RowRule<RowAdagrad> {
 public:
  RowAdagrad(const OptimizerOptions& options, bool tensors)
      : RowRule({"sum"}, 0, 1, always_lazy(options), tensors), eps_(options.eps) {}

 protected:
  void check(const SlotOptions& options) const override {
    if (options.weight_decay != 0)
      throw Error(
          Failure::config,
          "optimizer adagrad adds weight decay to the gradient, so every row of a table has a gradient; take no "
          "weight decay for the tables, or dense embeddings (model.rows: false)");
  }
  MissedUpdate missed_update(const SlotOptions&, const HostScalars&) const override { return {}; }

  void tensors(GatheredRows& rows, const SlotOptions&, const HostScalars& scalars) const override {
    if (!rows.gradients.defined()) return;
    const at::Tensor g = rows.gradients * scalars.gradient_scale;
    rows.moments[0].addcmul_(g, g);
    rows.values.sub_(g / rows.moments[0].sqrt().add_(eps_), scalars.learning_rate);
  }

 private:
  // Needs no history: `lazy` gives equal results.
  static OptimizerOptions always_lazy(OptimizerOptions options) {
    options.lazy = true;
    return options;
  }
  friend RowRule<RowAdagrad>;
  template <class T>
  void run_loop(const RowList<T>& list, const T* gradient, T* out, const SlotOptions&,
                const HostScalars& scalars) const {
    if (out != nullptr)
      sgd_look_up(list, out);  // unchanged
    else if (gradient != nullptr)
      adagrad_rows(list, gradient, {scalars.learning_rate, eps_, 0, scalars.gradient_scale});
  }

  double eps_ = 0;
};

// --- row_adam: Adam and AdamW for rows, with the values of the dense loops ---

class RowAdam : public RowRule<RowAdam> {
 public:
  RowAdam(const OptimizerOptions& options, bool tensors)
      : RowRule({"exp_avg", "exp_avg_sq"}, options.beta1, options.beta2, options, tensors), options_(options) {}

 protected:
  void check(const SlotOptions& options) const override {
    if (!options_.decoupled && options.weight_decay != 0)
      throw Error(
          Failure::config,
          "optimizer adam adds weight decay to the gradient, so every row of a table has a gradient; take adamw, "
          "no weight decay for the tables, or dense embeddings (model.rows: false)");
  }
  MissedUpdate missed_update(const SlotOptions& options, const HostScalars& scalars) const override {
    const AdamStep step = step_of(options, scalars);
    return {step.decay, step.learning_rate / step.correction1, 1 / std::sqrt(step.correction2)};
  }

  void tensors(GatheredRows& rows, const SlotOptions& options, const HostScalars& scalars) const override {
    at::Tensor& mean = rows.moments[0];
    at::Tensor& square = rows.moments[1];
    rows.values.mul_(rows.decay).sub_(rows.sum * mean / (square.sqrt().mul_(rows.spread).add_(options_.eps)));
    mean.mul_(rows.first);
    square.mul_(rows.second);
    if (!rows.gradients.defined()) return;
    const AdamStep step = step_of(options, scalars);
    const at::Tensor g = rows.gradients * step.gradient_scale;
    mean.add_(g - mean, 1 - options_.beta1);
    square.mul_(options_.beta2).addcmul_(g, g, 1 - options_.beta2);
    const at::Tensor divisor = square.sqrt().mul_(1 / std::sqrt(step.correction2)).add_(options_.eps);
    rows.values.mul_(step.decay).sub_(mean / divisor, step.learning_rate / step.correction1);
  }

 private:
  friend RowRule<RowAdam>;
  template <class T>
  void run_loop(const RowList<T>& list, const T* gradient, T* out, const SlotOptions& options,
                const HostScalars& scalars) const {
    if (out != nullptr) return adam_look_up(list, options_.eps, out);
    AdamStep step = gradient == nullptr ? AdamStep() : step_of(options, scalars);
    step.eps = options_.eps;
    adam_rows(list, gradient, step);
  }
  template <class T>
  void replay_updates(T* values, T* first, T* second, int64_t n, const MissedUpdate* updates, int64_t count) const {
    adam_replay(values, first, second, n, updates, count, {options_.beta1, options_.beta2, options_.eps});
  }
  AdamStep step_of(const SlotOptions& options, const HostScalars& scalars) const {
    return adam_step(options_, options, scalars);
  }

  OptimizerOptions options_;
};

// --- row_sgd: SGD for rows ---
// Momentum or weight decay changes a row without gradient. With one of the two, missed updates are one product. With
// both they are not, so `check` refuses this.

class RowSgd : public RowRule<RowSgd> {
 public:
  RowSgd(const OptimizerOptions& options, bool tensors)
      : RowRule(options.momentum == 0 ? std::vector<std::string>() : std::vector<std::string>{"momentum"},
                options.momentum, 1, never_exact(options), tensors),
        momentum_(options.momentum),
        nesterov_(options.nesterov) {}

 protected:
  void check(const SlotOptions& options) const override {
    if (momentum_ != 0 && options.weight_decay != 0)
      throw Error(
          Failure::config,
          "optimizer sgd with momentum adds weight decay to the gradient, so every row of a table has a gradient; "
          "leave one of them out for the tables, or take dense embeddings (model.rows: false)");
  }
  MissedUpdate missed_update(const SlotOptions& options, const HostScalars& scalars) const override {
    return {1 - scalars.learning_rate * options.weight_decay, scalars.learning_rate * (nesterov_ ? momentum_ : 1), 1};
  }

  void tensors(GatheredRows& rows, const SlotOptions& options, const HostScalars& scalars) const override {
    at::Tensor& velocity = rows.moments[0];
    rows.values.mul_(rows.decay);
    if (velocity.defined()) {
      rows.values.sub_(rows.sum * velocity);
      velocity.mul_(rows.first);
    }
    if (!rows.gradients.defined()) return;
    at::Tensor direction = rows.gradients * scalars.gradient_scale + rows.values * options.weight_decay;
    if (velocity.defined()) {
      velocity.mul_(momentum_).add_(direction);
      direction = nesterov_ ? direction.add(velocity, momentum_) : velocity;
    }
    rows.values.sub_(direction, scalars.learning_rate);
  }

 private:
  // Missed updates are one product, so the formula has their values.
  static OptimizerOptions never_exact(OptimizerOptions options) {
    options.exact_catch_up = false;
    return options;
  }
  friend RowRule<RowSgd>;
  template <class T>
  void run_loop(const RowList<T>& list, const T* gradient, T* out, const SlotOptions& options,
                const HostScalars& scalars) const {
    if (out != nullptr) return sgd_look_up(list, out);
    sgd_rows(list, gradient,
             {scalars.learning_rate, momentum_, nesterov_, options.weight_decay, scalars.gradient_scale});
  }

  double momentum_ = 0;
  bool nesterov_ = false;
};

}  // namespace

std::unique_ptr<RowOptimizer> make_row_optimizer(const Component& optimizer, bool tensors) {
  const OptimizerOptions options = optimizer_options(optimizer);
  if (optimizer.name == "sgd") return std::make_unique<RowSgd>(options, tensors);
  if (optimizer.name == "adagrad") return std::make_unique<RowAdagrad>(options, tensors);
  CONVOY_CHECK(optimizer.name == "adam" || optimizer.name == "adamw", "optimizer '", optimizer.name, "' has no rows");
  return std::make_unique<RowAdam>(options, tensors);
}

}  // namespace convoy
