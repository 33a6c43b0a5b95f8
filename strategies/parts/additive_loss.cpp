#include "strategies/parts/additive_loss.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "strategies/parts/model_part.h"

namespace convoy {
namespace {

// Rounding is far below, and a mean in the place of a sum far above it.
constexpr double tolerance = 1e-3;

struct Figures {
  double sum = 0, weight = 0;
};

// Takes a copy: a block may change its input in place, and parts of a batch share memory.
Figures figures_of(ModelPart& part, Batch batch) {
  for (auto& entry : batch.tensors) entry.second = entry.second.clone();
  const Loss loss = part.loss(part.evaluate(batch), batch);
  return {loss.sum.detach().to(at::kDouble).sum().item<double>(), loss.weight.to(at::kDouble).sum().item<double>()};
}

bool equal(double a, double b) { return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b)); }

std::string text_of(const Figures& figures) { return convoy::str(figures.sum, " with weight ", figures.weight); }

}  // namespace

std::string loss_fault(const Context& context, const ModelPtr& model, const std::shared_ptr<const LossFunction>& loss,
                       const Batch& batch) {
  const int64_t cut = batch.rows / 3 + 1;
  if (cut >= batch.rows) return "";
  Figures whole, first, second;
  try {
    ModelPart part(context, model, loss);
    whole = figures_of(part, batch);
    first = figures_of(part, batch.slice(0, cut));
    second = figures_of(part, batch.slice(cut, batch.rows));
  } catch (const std::exception&) {
    return "";  // training tells what is wrong
  }
  const bool weights = equal(whole.weight, first.weight + second.weight);
  if (weights && (equal(whole.sum, first.sum + second.sum) || !std::isfinite(whole.sum))) return "";
  return convoy::str("the loss is no sum over rows: ", batch.rows, " rows give ", text_of(whole), ", their first ", cut,
                     " give ", text_of(first), " and the other ", batch.rows - cut, " ", text_of(second),
                     "; a loss returns the sum over rows and their total weight, never a mean",
                     weights ? ", and no block may mix rows in evaluation" : "");
}

}  // namespace convoy
