// A loss: a sum and a weight, never a mean. So shares of any size add up.
#include <ATen/ATen.h>

#include "parts.h"

namespace {

using namespace convoy;

// prediction and target [.., B, k]; the mean over k, summed over rows.
class Huber : public LossFunction {
 public:
  explicit Huber(double delta) : delta_(delta) {}
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor prediction = layers.gathered(examples.prediction);
    const at::Tensor error = (prediction - examples.target.to(prediction.dtype())).abs();
    const at::Tensor near = error.clamp_max(delta_);
    const at::Tensor row = (near * (error - 0.5 * near)).mean(-1);
    const at::Tensor weight = examples.weight.defined() ? examples.weight.to(row.dtype()) : at::ones_like(row);
    return {(row * weight).sum(-1), weight.expand_as(row).sum(-1).detach()};
  }

 private:
  double delta_;
};

}  // namespace

std::shared_ptr<const LossFunction> make_huber(const Options& options) {
  return std::make_shared<Huber>(options.real("delta"));
}
