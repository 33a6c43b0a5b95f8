#include "core/losses/losses.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "core/error.h"

namespace convoy {

at::Tensor at_least_float(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor fitted(const at::Tensor& prediction, const at::Tensor& target, int64_t members, const char* loss) {
  const int64_t lead = members > 0 ? 1 : 0;
  const auto fits = [&](at::IntArrayRef shape) {
    const auto own = shape.slice(lead);
    return target.sizes() == own || (lead && target.sizes() == shape);
  };
  if (prediction.dim() > lead && fits(prediction.sizes())) return prediction;
  if (prediction.dim() > lead + 1 && prediction.size(-1) == 1) {
    const at::Tensor squeezed = prediction.squeeze(-1);
    if (fits(squeezed.sizes())) return squeezed;
  }
  throw Error(Failure::config,
              convoy::str("loss ", loss, ": the prediction has shape ", prediction.sizes(), " and the target ",
                          target.sizes(), lead ? convoy::str(" (members ", members, ")") : "",
                          "; choose a loss that fits the model's output, or a model that fits the data"));
}

at::Tensor aligned_weight(const at::Tensor& weight, const at::Tensor& elements, int64_t members) {
  const int64_t lead = members > 0 ? 1 : 0;
  // Missing dimensions are the row's elements when the weight is one of rows, and the members otherwise.
  at::Tensor aligned = weight.detach().to(elements.scalar_type());
  const bool per_element = weight.dim() >= elements.dim() - lead && weight.dim() <= elements.dim() &&
                           weight.sizes() == elements.sizes().slice(size_t(elements.dim() - weight.dim()));
  if (!per_element) {
    const int64_t dims = weight.dim() > 1 ? elements.dim() : elements.dim() - lead;
    if (weight.dim() < 1 || weight.dim() > dims)
      throw Error(Failure::config, convoy::str("weights of shape ", weight.sizes(), " do not fit losses of shape ",
                                               elements.sizes(), "; give one for each row, or for each element"));
    while (aligned.dim() < dims) aligned = aligned.unsqueeze(-1);
  }
  return aligned.expand_as(elements);
}

Loss weighted(const at::Tensor& elements, const at::Tensor& weight, int64_t members) {
  const int64_t lead = members > 0 ? 1 : 0;
  std::vector<int64_t> inner;
  for (int64_t d = lead; d < elements.dim(); ++d) inner.push_back(d);
  const auto reduced = [&](const at::Tensor& tensor) { return inner.empty() ? tensor : tensor.sum(inner); };
  if (!weight.defined()) {
    const double count = double(elements.numel()) / double(std::max<int64_t>(members, 1));
    const std::vector<int64_t> shape(size_t(lead), members);
    return {reduced(elements), at::full(shape, count, elements.detach().options())};
  }
  const at::Tensor aligned = aligned_weight(weight, elements, members);
  return {reduced(elements * aligned), reduced(aligned)};
}

double real_or(const Options& options, const char* name, double fallback) {
  return options.has(name) ? options.real(name) : fallback;
}

void register_losses(Registry& registry) {
  registry.losses.add("bce", make_bce);
  registry.losses.add("mse", make_mse);
  registry.losses.add("cross_entropy", make_cross_entropy);
  registry.losses.add("bpr", make_bpr);
}

}  // namespace convoy
