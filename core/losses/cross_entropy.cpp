// cross_entropy through Layers, so that logits cut over a tensor group are never gathered for it.
#include <ATen/core/Tensor.h>

#include <optional>

#include "core/error.h"
#include "core/losses/losses.h"

namespace convoy {
namespace {

class CrossEntropy : public LossFunction {
 public:
  CrossEntropy(double smoothing, std::optional<int64_t> ignore) : smoothing_(smoothing), ignore_(ignore) {}

  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor& logits = examples.prediction;
    const int64_t members = layers.members();
    check_shapes(logits, examples.target, members);
    // Members that share a batch share its targets.
    at::Tensor target = examples.target.to(at::kLong).expand(logits.sizes().slice(0, size_t(logits.dim() - 1)));
    at::Tensor counted;
    if (ignore_) {
      counted = target.ne(*ignore_);
      target = target.masked_fill(counted.logical_not(), 0);
    }
    at::Tensor elements = at_least_float(layers.cross_entropy(logits, target));
    if (smoothing_ > 0) {
      // Against the even distribution: log Σ exp - mean; this needs all classes at once.
      const at::Tensor whole = at_least_float(layers.gathered(logits));
      const at::Tensor even = whole.logsumexp(-1) - whole.mean(-1);
      elements = elements * (1 - smoothing_) + even * smoothing_;
    }
    at::Tensor weight = examples.weight;
    if (counted.defined()) {
      counted = counted.to(elements.scalar_type());
      weight = weight.defined() ? counted * aligned_weight(weight, elements, members) : counted;
    }
    return weighted(elements, weight, members);
  }

 private:
  static void check_shapes(const at::Tensor& logits, const at::Tensor& target, int64_t members) {
    const auto positions = logits.dim() > 0 ? logits.sizes().slice(0, size_t(logits.dim() - 1)) : logits.sizes();
    const bool fits =
        logits.dim() > 1 && (target.sizes() == positions || (members > 0 && target.sizes() == positions.slice(1)));
    if (fits) return;
    throw Error(
        Failure::config,
        convoy::str(
            "loss cross_entropy: the logits have shape ", logits.sizes(), " and the target ", target.sizes(),
            "; targets are classes, one for each row of logits. For a number or a mark per row choose mse or bce"));
  }

  double smoothing_;
  std::optional<int64_t> ignore_;
};

}  // namespace

std::shared_ptr<const LossFunction> make_cross_entropy(const Options& options) {
  std::optional<int64_t> ignore;
  if (options.has("ignore")) ignore = options.integer("ignore");
  return std::make_shared<CrossEntropy>(real_or(options, "label_smoothing", 0), ignore);
}

}  // namespace convoy
