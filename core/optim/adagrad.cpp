// Adagrad (Duchi, Hazan, Singer, JMLR 2011), as torch::optim computes it without a decay of the learning rate.
#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "core/error.h"
#include "core/optim/dense.h"
#include "core/optim/entries.h"
#include "core/optim/row_loops.h"

namespace convoy {
namespace {

class Adagrad : public DenseOptimizer {
 public:
  explicit Adagrad(const Options& options) : DenseOptimizer({"sum"}), eps_(options.real("eps")) {
    adagrad_entry().check(options);
  }

 protected:
  void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adagrad_loop(values, gradient, moments[0], n, step(options, scalars));
  }
  void loop(double* values, const double* gradient, double* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adagrad_loop(values, gradient, moments[0], n, step(options, scalars));
  }

  void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments, const SlotOptions&,
               const TensorScalars& scalars) const override {
    const at::Tensor g = gradient * scalars.gradient_scale + values * scalars.weight_decay;
    moments[0].addcmul_(g, g);
    values.sub_(scalars.learning_rate * g / moments[0].sqrt().add_(eps_));
  }

  // LibTorch has no kernel of it that is told to do nothing: gradients of zero do, since a sum of nothing moves nothing.
  void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor&,
             const at::Tensor& divisor, const at::Tensor& skip) const override {
    const at::Tensor applies = skip == 0;
    at::Tensor g = gradient / divisor;
    if (slot.options.weight_decay != 0) g = g.add(slot.values, slot.options.weight_decay);
    g = at::where(applies, g, at::zeros_like(g));
    slot.moments[0].addcmul_(g, g);
    slot.values.sub_(learning_rate * g / slot.moments[0].sqrt().add_(eps_));
  }

 private:
  AdagradStep step(const SlotOptions& options, const HostScalars& scalars) const {
    return {scalars.learning_rate, eps_, options.weight_decay, scalars.gradient_scale};
  }

  double eps_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(const Options& options) { return std::make_unique<Adagrad>(options); }

}  // namespace convoy
