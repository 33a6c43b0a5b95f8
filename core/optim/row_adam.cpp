// row_adam: Adam and AdamW on the rows of tables, with the values that adam.cpp's would have reached.
#include <ATen/core/Tensor.h>

#include <cmath>

#include "core/error.h"
#include "core/optim/row_base.h"

namespace convoy {
namespace {

class RowAdam : public RowBase {
 public:
  RowAdam(const std::vector<double>& betas, double eps, bool decoupled, RowWays ways)
      : RowBase({"exp_avg", "exp_avg_sq"}, betas.at(0), betas.at(1), ways),
        beta1_(betas[0]),
        beta2_(betas[1]),
        eps_(eps),
        decoupled_(decoupled) {}

 protected:
  void check(const SlotOptions& options) const override {
    if (!decoupled_ && options.weight_decay != 0)
      throw Error(Failure::config,
                  "optimizer adam adds weight decay to the gradient, which then no row of a table is without; take "
                  "adamw, no weight decay for the tables, or tables with dense gradients");
  }
  SkippedUpdate skipped(const SlotOptions& options, const HostScalars& scalars) const override {
    const AdamStep step = step_of(options, scalars);
    return {step.decay, step.learning_rate / step.correction1, 1 / std::sqrt(step.correction2)};
  }
  void loop(const RowList<float>& list, const float* gradient, float* out, const SlotOptions& options,
            const HostScalars& scalars) const override {
    run(list, gradient, out, options, scalars);
  }
  void loop(const RowList<double>& list, const double* gradient, double* out, const SlotOptions& options,
            const HostScalars& scalars) const override {
    run(list, gradient, out, options, scalars);
  }
  void replay(float* values, float* first, float* second, int64_t n, const SkippedUpdate* updates,
              int64_t count) const override {
    adam_replay(values, first, second, n, updates, count, {beta1_, beta2_, eps_});
  }
  void replay(double* values, double* first, double* second, int64_t n, const SkippedUpdate* updates,
              int64_t count) const override {
    adam_replay(values, first, second, n, updates, count, {beta1_, beta2_, eps_});
  }

  void tensors(GatheredRows& rows, const SlotOptions& options, const HostScalars& scalars) const override {
    at::Tensor& mean = rows.moments[0];
    at::Tensor& square = rows.moments[1];
    rows.values.mul_(rows.decay).sub_(rows.sum * mean / (square.sqrt().mul_(rows.spread).add_(eps_)));
    mean.mul_(rows.first);
    square.mul_(rows.second);
    if (!rows.gradients.defined()) return;
    const AdamStep step = step_of(options, scalars);
    const at::Tensor g = rows.gradients * step.gradient_scale;
    mean.add_(g - mean, 1 - beta1_);
    square.mul_(beta2_).addcmul_(g, g, 1 - beta2_);
    const at::Tensor divisor = square.sqrt().mul_(1 / std::sqrt(step.correction2)).add_(eps_);
    rows.values.mul_(step.decay).sub_(mean / divisor, step.learning_rate / step.correction1);
  }

 private:
  template <class T>
  void run(const RowList<T>& list, const T* gradient, T* out, const SlotOptions& options,
           const HostScalars& scalars) const {
    if (out != nullptr) return adam_look_up(list, eps_, out);
    AdamStep step = gradient == nullptr ? AdamStep() : step_of(options, scalars);
    step.eps = eps_;
    adam_rows(list, gradient, step);
  }
  AdamStep step_of(const SlotOptions& options, const HostScalars& scalars) const {
    return adam_step({beta1_, beta2_, eps_, decoupled_}, options, scalars);
  }

  double beta1_ = 0, beta2_ = 0, eps_ = 0;
  bool decoupled_ = false;
};

}  // namespace

std::unique_ptr<RowOptimizer> make_row_adam(const Options& options, bool decoupled, RowWays ways) {
  return std::make_unique<RowAdam>(options.reals("betas"), options.real("eps"), decoupled, ways);
}

}  // namespace convoy
