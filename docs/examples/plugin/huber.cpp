// A loss: a sum and a weight, never a mean. So shares of any size add up.
#include <ATen/ATen.h>

#include "factories.h"

namespace {

using namespace convoy;

// prediction and target [B, ...]; in an ensemble [members, B, ...].
class Huber : public LossFunction {
 public:
  explicit Huber(double delta) : delta_(delta) {}
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor prediction =
        at_least_float(fitted(layers.gathered(examples.prediction), examples.target, layers.members(), "huber"));
    const at::Tensor error = (prediction - examples.target.to(prediction.dtype())).abs();
    const at::Tensor near = error.clamp_max(delta_);
    return weighted(near * (error - 0.5 * near), examples.weight, layers.members());
  }

 private:
  double delta_;
};

}  // namespace

std::shared_ptr<const LossFunction> make_huber(const Options& options) {
  return std::make_shared<Huber>(options.real("delta"));
}
