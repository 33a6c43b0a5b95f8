// bpr: Bayesian personalised ranking (Rendle et al., UAI 2009): -log sigmoid(positive - negative) for each negative.
#include <ATen/core/Tensor.h>
#include <ATen/ops/log_sigmoid.h>

#include "core/error.h"
#include "core/losses/losses.h"

namespace convoy {
namespace {

class Bpr : public LossFunction {
 public:
  // prediction: scores [.., B, 1 + n], a row's first being its positive's. Targets are not looked at. The weight counts
  // pairs.
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const int64_t members = layers.members(), lead = members > 0 ? 1 : 0;
    const at::Tensor scores = at_least_float(layers.gathered(examples.prediction));
    if (scores.dim() != lead + 2 || scores.size(-1) < 2) {
      throw Error(Failure::config, convoy::str("loss bpr: scores have shape ", scores.sizes(),
                                               "; each row needs its positive's and at least one negative's "
                                               "(data.negatives of 1 or more, a model that scores whole rows)"));
    }
    const at::Tensor margins = scores.narrow(-1, 0, 1) - scores.narrow(-1, 1, scores.size(-1) - 1);
    at::Tensor weight = examples.weight;
    // A weight per score says for each negative how much its pair counts.
    if (weight.defined() && weight.dim() > 1 && weight.size(-1) == scores.size(-1)) {
      weight = weight.narrow(-1, 1, scores.size(-1) - 1);
    }
    return weighted(-at::log_sigmoid(margins), weight, members);
  }
};

}  // namespace

std::shared_ptr<const LossFunction> make_bpr(const Options&) { return std::make_shared<Bpr>(); }

}  // namespace convoy
