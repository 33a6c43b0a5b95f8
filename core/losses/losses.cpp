#include "core/losses/losses.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_sigmoid_forward.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>
#include <algorithm>
#include <optional>

#include "core/tensors/tensor_memory.h"

namespace convoy {

// --- row_cross_entropy ---

namespace {

// LibTorch's kernel vectorises over the classes of one row, which pays from about this number on.
constexpr int64_t few_classes = 64;

// shifted[row, c] = logits[row, c] - largest of the row; of_target[row] = shifted[row, target[row]].
template <class T>
void shift_rows(const T* logits, const int64_t* target, T* shifted, T* of_target, int64_t rows, int64_t classes) {
  for (int64_t row = 0; row < rows; ++row, logits += classes, shifted += classes) {
    const T most = *std::max_element(logits, logits + classes);
    for (int64_t c = 0; c < classes; ++c) shifted[c] = logits[c] - most;
    of_target[row] = shifted[target[row]];
  }
}

// Divides each row of exponentials by its sum.
template <class T>
void normalise_rows(T* exponentials, T* sums, int64_t rows, int64_t classes) {
  for (int64_t row = 0; row < rows; ++row, exponentials += classes) {
    T sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += exponentials[c];
    sums[row] = sum;
    for (int64_t c = 0; c < classes; ++c) exponentials[c] /= sum;
  }
}

template <class T>
void to_logits(const T* gradient, const T* shares, const int64_t* target, T* out, int64_t rows, int64_t classes) {
  for (int64_t row = 0; row < rows; ++row, shares += classes, out += classes) {
    for (int64_t c = 0; c < classes; ++c) out[c] = gradient[row] * shares[c];
    out[target[row]] -= gradient[row];
  }
}

class RowCrossEntropy : public torch::autograd::Function<RowCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target) {
    const int64_t rows = logits.size(0), classes = logits.size(1);
    at::Tensor shares = at::empty(logits.sizes(), logits.options());
    at::Tensor of_target = at::empty({rows}, logits.options()), sums = at::empty({rows}, logits.options());
    const int64_t* const targets = target.const_data_ptr<int64_t>();
    if (!tensors_are_fake())
      AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "row_cross_entropy", [&] {
        shift_rows(logits.const_data_ptr<scalar_t>(), targets, shares.mutable_data_ptr<scalar_t>(),
                   of_target.mutable_data_ptr<scalar_t>(), rows, classes);
        shares.exp_();
        normalise_rows(shares.mutable_data_ptr<scalar_t>(), sums.mutable_data_ptr<scalar_t>(), rows, classes);
      });
    context->save_for_backward({shares, target});
    return sums.log_().sub_(of_target);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &shares = saved[0], &target = saved[1], gradient = gradients[0].contiguous();
    at::Tensor out = at::empty(shares.sizes(), shares.options());
    if (!tensors_are_fake())
      AT_DISPATCH_FLOATING_TYPES(shares.scalar_type(), "row_cross_entropy_backward", [&] {
        to_logits(gradient.const_data_ptr<scalar_t>(), shares.const_data_ptr<scalar_t>(),
                  target.const_data_ptr<int64_t>(), out.mutable_data_ptr<scalar_t>(), shares.size(0), shares.size(1));
      });
    return {out, at::Tensor()};
  }
};

bool all_in_range(const at::Tensor& target, int64_t classes) {
  const int64_t* const first = target.const_data_ptr<int64_t>();
  return std::all_of(first, first + target.numel(), [=](int64_t one) { return one >= 0 && one < classes; });
}

}  // namespace

at::Tensor row_cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  const auto dtype = logits.scalar_type();
  const bool plain = logits.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble) && logits.dim() == 2 &&
                     logits.size(1) > 0 && logits.size(1) < few_classes && target.is_cpu() &&
                     target.scalar_type() == at::kLong && target.dim() == 1 && target.size(0) == logits.size(0) &&
                     !at::isTensorSubclassLike(logits) && !at::isTensorSubclassLike(target);
  if (plain) {
    const at::Tensor classes = target.contiguous();
    // LibTorch has the message for a class that does not exist.
    if (tensors_are_fake() || all_in_range(classes, logits.size(1)))
      return RowCrossEntropy::apply(logits.contiguous(), classes);
  }
  return at::cross_entropy_loss(logits, target, {}, at::Reduction::None);
}

// --- Losses ---

at::Tensor at_least_float(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor fitted(const at::Tensor& prediction, const at::Tensor& target, int64_t members, const char* loss) {
  const int64_t lead = members > 0 ? 1 : 0;
  const auto fits = [&](at::IntArrayRef shape) {
    const auto member_shape = shape.slice(lead);
    return target.sizes() == member_shape || (lead && target.sizes() == shape);
  };
  if (prediction.dim() > lead && fits(prediction.sizes())) return prediction;
  if (prediction.dim() > lead + 1 && prediction.size(-1) == 1) {
    const at::Tensor squeezed = prediction.squeeze(-1);
    if (fits(squeezed.sizes())) return squeezed;
  }
  throw Error(Failure::config, "loss ", loss, ": the prediction has shape ", prediction.sizes(), " and the target ",
              target.sizes(), lead ? convoy::str(" (members ", members, ")") : "",
              "; choose a loss that fits the model's output, or a model that fits the data");
}

namespace {

// Expands a weight to the shape and dtype of `elements` ([.., B, …], members in front). The weight is per row ([B],
// [members, B]) or per element, with or without members.
at::Tensor aligned_weight(const at::Tensor& weight, const at::Tensor& elements, int64_t members) {
  const int64_t lead = members > 0 ? 1 : 0;
  // If the weight is per row, the missing dimensions are the row's elements; else they are the members.
  at::Tensor aligned = weight.detach().to(elements.scalar_type());
  const bool per_element = weight.dim() >= elements.dim() - lead && weight.dim() <= elements.dim() &&
                           weight.sizes() == elements.sizes().slice(size_t(elements.dim() - weight.dim()));
  if (!per_element) {
    const int64_t dims = weight.dim() > 1 ? elements.dim() : elements.dim() - lead;
    if (weight.dim() < 1 || weight.dim() > dims)
      throw Error(Failure::config, "weights of shape ", weight.sizes(), " do not fit losses of shape ",
                  elements.sizes(), "; give one for each row, or for each element");
    while (aligned.dim() < dims) aligned = aligned.unsqueeze(-1);
  }
  return aligned.expand_as(elements);
}

// The weight of a loss whose elements count 1 each: [], or [members].
at::Tensor count_of(const at::Tensor& elements, int64_t members) {
  const double count = double(elements.numel()) / double(std::max<int64_t>(members, 1));
  const auto options = elements.options().requires_grad(false);
  return members > 0 ? at::full({members}, count, options) : at::scalar_tensor(count, options);
}

}  // namespace

Loss weighted(const at::Tensor& elements, const at::Tensor& weight, int64_t members) {
  const int64_t lead = members > 0 ? 1 : 0;
  std::vector<int64_t> inner;
  for (int64_t d = lead; d < elements.dim(); ++d) inner.push_back(d);
  const auto reduced = [&](const at::Tensor& tensor) { return inner.empty() ? tensor : tensor.sum(inner); };
  if (!weight.defined()) return {reduced(elements), count_of(elements, members)};
  const at::Tensor aligned = aligned_weight(weight, elements, members);
  return {reduced(elements * aligned), reduced(aligned)};
}

namespace {

// Options are empty if a model creates its loss without configuration.
double smoothing_of(const Options& options) {
  return options.has("label_smoothing") ? options.real("label_smoothing") : 0;
}

// --- bpr: Bayesian personalised ranking (Rendle et al., UAI 2009): -log sigmoid(positive - negative) per negative ---

class Bpr : public LossFunction {
 public:
  // prediction: scores [.., B, 1 + n], a row's positive first. Targets are unused. The weight counts pairs.
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const int64_t members = layers.members(), lead = members > 0 ? 1 : 0;
    const at::Tensor scores = at_least_float(layers.gathered(examples.prediction));
    if (scores.dim() != lead + 2 || scores.size(-1) < 2) {
      throw Error(Failure::config, "loss bpr: scores have shape ", scores.sizes(),
                  "; each row needs its positive's and at least one negative's "
                  "(data.negatives of 1 or more, a model that scores whole rows)");
    }
    const at::Tensor margins = scores.narrow(-1, 0, 1) - scores.narrow(-1, 1, scores.size(-1) - 1);
    at::Tensor weight = examples.weight;
    // A weight per score: the negatives' entries weight their pairs.
    if (weight.defined() && weight.dim() > 1 && weight.size(-1) == scores.size(-1)) {
      weight = weight.narrow(-1, 1, scores.size(-1) - 1);
    }
    return weighted(-at::log_sigmoid(margins), weight, members);
  }
};

// --- cross_entropy: through Layers, so that logits sharded over a tensor group need no gather ---

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
      // Cross-entropy with the uniform distribution: log Σ exp - mean. It needs all classes at once.
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
    throw Error(Failure::config, "loss cross_entropy: the logits have shape ", logits.sizes(), " and the target ",
                target.sizes(),
                "; targets are classes, one for each row of logits. For a number per row choose mse or bce");
  }

  double smoothing_;
  std::optional<int64_t> ignore_;
};

// --- bce and mse: each prediction with its target ---

// The sum of at::binary_cross_entropy_with_logits: logits and target of one shape → []. It is one node of the graph
// instead of two, and its operators are not dispatched through autograd.
class SummedBinaryCrossEntropy : public torch::autograd::Function<SummedBinaryCrossEntropy> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target) {
    context->save_for_backward({logits, target});
    at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor elements = at::addcmul(logits, target, logits, -1);  // (1 - target) · logits
    return at::sum(elements.sub_(std::get<0>(at::log_sigmoid_forward(logits))), at::IntArrayRef{});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &target = saved[1], &gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor()};
    if (at::GradMode::is_enabled()) return {(logits.sigmoid() - target) * gradient, at::Tensor()};
    at::AutoDispatchBelowADInplaceOrView below;
    return {logits.sigmoid().sub_(target).mul_(gradient), at::Tensor()};
  }
};

class BinaryCrossEntropy : public LossFunction {
 public:
  explicit BinaryCrossEntropy(double smoothing) : smoothing_(smoothing) {}

  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor logits =
        at_least_float(fitted(layers.gathered(examples.prediction), examples.target, layers.members(), "bce"));
    at::Tensor target = examples.target.to(logits.scalar_type());
    if (smoothing_ > 0) target = target * (1 - smoothing_) + smoothing_ / 2;
    if (layers.members() == 0 && !examples.weight.defined() && target.sizes() == logits.sizes() &&
        !target.requires_grad() && !at::isTensorSubclassLike(logits))
      return {SummedBinaryCrossEntropy::apply(logits, target), count_of(logits, 0)};
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

LossPtr make_bce(const Options& options) { return std::make_shared<BinaryCrossEntropy>(smoothing_of(options)); }

LossPtr make_mse(const Options&) { return std::make_shared<SquaredError>(); }

LossPtr make_cross_entropy(const Options& options) {
  std::optional<int64_t> ignore;
  if (options.has("ignore")) ignore = options.integer("ignore");
  return std::make_shared<CrossEntropy>(smoothing_of(options), ignore);
}

LossPtr make_bpr(const Options&) { return std::make_shared<Bpr>(); }

std::map<std::string, LossFactory> loss_factories() {
  return {
      {"bce", make_bce},
      {"mse", make_mse},
      {"cross_entropy", make_cross_entropy},
      {"bpr", make_bpr},
  };
}

}  // namespace convoy
