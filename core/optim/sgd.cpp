// SGD with momentum and Nesterov's look-ahead (Sutskever et al., ICML 2013), as torch::optim computes them.
#include <ATen/core/Tensor.h>

#include "core/error.h"
#include "core/optim/dense.h"
#include "core/optim/entries.h"
#include "core/optim/loops.h"

namespace convoy {
namespace {

std::vector<std::string> moment_names(const Options& options) {
  if (options.real("momentum") == 0) return {};
  return {"momentum"};
}

class Sgd : public DenseOptimizer {
 public:
  explicit Sgd(const Options& options)
      : DenseOptimizer(moment_names(options)),
        momentum_(options.real("momentum")),
        nesterov_(options.boolean("nesterov")) {
    sgd_entry().check(options);
  }

 protected:
  void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    sgd_loop(values, gradient, moments[0], n, step(options, scalars));
  }
  void loop(double* values, const double* gradient, double* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    sgd_loop(values, gradient, moments[0], n, step(options, scalars));
  }

  void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments, const SlotOptions&,
               const TensorScalars& scalars) const override {
    at::Tensor direction = gradient * scalars.gradient_scale + values * scalars.weight_decay;
    if (momentum_ != 0) {
      moments[0].mul_(momentum_).add_(direction);
      direction = nesterov_ ? direction.add(moments[0], momentum_) : moments[0];
    }
    values.sub_(scalars.learning_rate * direction);
  }

  void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor&,
             const at::Tensor& divisor, const at::Tensor& skip) const override {
    at::Tensor values = slot.values, spoiled = gradient;
    // A velocity of zeros needs no first step of its own.
    at::_fused_sgd_({values}, {spoiled}, slot.moments, slot.options.weight_decay, momentum_, learning_rate,
                    /*dampening=*/0, nesterov_, /*maximize=*/false, /*is_first_step=*/false, divisor, skip);
  }

 private:
  SgdStep step(const SlotOptions& options, const HostScalars& scalars) const {
    return {scalars.learning_rate, momentum_, nesterov_, options.weight_decay, scalars.gradient_scale};
  }

  double momentum_ = 0;
  bool nesterov_ = false;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const Options& options) { return std::make_unique<Sgd>(options); }

}  // namespace convoy
