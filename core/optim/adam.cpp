// Adam (Kingma, Ba, arXiv:1412.6980) and AdamW (Loshchilov, Hutter, arXiv:1711.05101), as torch::optim computes them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>

#include <cmath>

#include "core/error.h"
#include "core/optim/dense.h"
#include "core/optim/entries.h"
#include "core/optim/loops.h"

namespace convoy {
namespace {

class Adam : public DenseOptimizer {
 public:
  Adam(const Options& options, bool decoupled)
      : DenseOptimizer({"exp_avg", "exp_avg_sq"}), eps_(options.real("eps")), decoupled_(decoupled) {
    adam_entry().check(options);
    const std::vector<double> betas = options.reals("betas");
    beta1_ = betas[0];
    beta2_ = betas[1];
  }

 protected:
  void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adam_loop(values, gradient, moments[0], moments[1], n, step(options, scalars));
  }
  void loop(double* values, const double* gradient, double* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adam_loop(values, gradient, moments[0], moments[1], n, step(options, scalars));
  }

  void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments, const SlotOptions&,
               const TensorScalars& scalars) const override {
    at::Tensor g = gradient * scalars.gradient_scale;
    if (!decoupled_) g.addcmul_(values, scalars.weight_decay);
    moments[0].add_(g - moments[0], 1 - beta1_);
    moments[1].mul_(beta2_).addcmul_(g, g, 1 - beta2_);
    const auto dtype = values.scalar_type();
    const at::Tensor correction1 = (1 - at::pow(beta1_, scalars.step)).to(dtype);
    const at::Tensor root = at::rsqrt(1 - at::pow(beta2_, scalars.step)).to(dtype);
    if (decoupled_) values.mul_(1 - scalars.learning_rate * scalars.weight_decay);
    values.sub_(scalars.learning_rate / correction1 * moments[0] / (moments[1].sqrt() * root + eps_));
  }

  void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor& step,
             const at::Tensor& divisor, const at::Tensor& skip) const override {
    at::Tensor values = slot.values, spoiled = gradient, mean = slot.moments[0], square = slot.moments[1], steps = step;
    const double decay = slot.options.weight_decay;
    if (decoupled_) {
      at::_fused_adamw_({values}, {spoiled}, {mean}, {square}, {}, {steps}, learning_rate, beta1_, beta2_, decay, eps_,
                        /*amsgrad=*/false, /*maximize=*/false, divisor, skip);
    } else {
      at::_fused_adam_({values}, {spoiled}, {mean}, {square}, {}, {steps}, learning_rate, beta1_, beta2_, decay, eps_,
                       /*amsgrad=*/false, /*maximize=*/false, divisor, skip);
    }
  }

 private:
  AdamStep step(const SlotOptions& options, const HostScalars& scalars) const {
    return adam_step({beta1_, beta2_, eps_, decoupled_}, options, scalars);
  }

  double beta1_ = 0, beta2_ = 0, eps_ = 0;
  bool decoupled_ = false;
};

}  // namespace

AdamStep adam_step(const AdamSettings& settings, const SlotOptions& options, const HostScalars& scalars) {
  AdamStep step;
  step.learning_rate = scalars.learning_rate;
  step.beta1 = settings.beta1;
  step.beta2 = settings.beta2;
  step.eps = settings.eps;
  step.correction1 = 1 - std::pow(settings.beta1, double(scalars.step));
  step.correction2 = 1 - std::pow(settings.beta2, double(scalars.step));
  step.l2 = settings.decoupled ? 0 : options.weight_decay;
  step.decay = settings.decoupled ? 1 - scalars.learning_rate * options.weight_decay : 1;
  step.gradient_scale = scalars.gradient_scale;
  return step;
}

std::unique_ptr<Optimizer> make_adam(const Options& options, bool decoupled) {
  return std::make_unique<Adam>(options, decoupled);
}

}  // namespace convoy
