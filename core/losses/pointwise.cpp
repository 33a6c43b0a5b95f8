// bce and mse: each prediction against its own target.
#include <ATen/core/Tensor.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>

#include "core/losses/losses.h"

namespace convoy {
namespace {

class BinaryCrossEntropy : public LossFunction {
 public:
  explicit BinaryCrossEntropy(double smoothing) : smoothing_(smoothing) {}

  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor logits =
        at_least_float(fitted(layers.gathered(examples.prediction), examples.target, layers.members(), "bce"));
    at::Tensor target = examples.target.to(logits.scalar_type());
    if (smoothing_ > 0) target = target * (1 - smoothing_) + smoothing_ / 2;
    const at::Tensor elements =
        at::binary_cross_entropy_with_logits(logits, target.expand_as(logits), {}, {}, at::Reduction::None);
    return weighted(elements, examples.weight, layers.members());
  }

 private:
  double smoothing_;
};

class SquaredError : public LossFunction {
 public:
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor prediction =
        at_least_float(fitted(layers.gathered(examples.prediction), examples.target, layers.members(), "mse"));
    const at::Tensor difference = prediction - examples.target.to(prediction.scalar_type());
    return weighted(difference * difference, examples.weight, layers.members());
  }
};

}  // namespace

std::shared_ptr<const LossFunction> make_bce(const Options& options) {
  return std::make_shared<BinaryCrossEntropy>(real_or(options, "label_smoothing", 0));
}

std::shared_ptr<const LossFunction> make_mse(const Options&) { return std::make_shared<SquaredError>(); }

}  // namespace convoy
