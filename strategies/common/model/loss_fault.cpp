#include "strategies/registry.h"

#include <ATen/core/Tensor.h>
#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "strategies/common/model/model_part.h"

namespace convoy {
namespace {

// Far above rounding errors, and far below the error of a mean instead of a sum.
constexpr double tolerance = 1e-3;

struct LossSums {
  double sum = 0, weight = 0;
};

LossSums sums_of(const Loss& loss) {
  return {loss.sum.detach().to(at::kDouble).sum().item<double>(), loss.weight.to(at::kDouble).sum().item<double>()};
}

// A block or a loss may change its input in place, and slices of a batch share memory.
Batch copied(Batch batch) {
  for (auto& entry : batch.tensors) entry.second = entry.second.clone();
  return batch;
}

LossSums loss_sums_of(ModelPart& part, const Batch& given) {
  const Batch batch = copied(given);
  return sums_of(part.loss(part.evaluate(batch), batch));
}

// Loss of rows [begin, end), from the outputs of all rows.
LossSums loss_sums_of(ModelPart& part, const TensorList& outputs, const Batch& batch, int64_t begin, int64_t end) {
  TensorList rows;
  for (const at::Tensor& output : outputs) {
    if (output.dim() == 0 || output.size(0) != batch.rows) throw Error(Failure::training, "an output has no rows");
    rows.push_back(output.slice(0, begin, end).clone());
  }
  return sums_of(part.loss(rows, copied(batch.slice(begin, end))));
}

bool equal(double a, double b) { return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b)); }

std::string text_of(const LossSums& sums) { return convoy::str(sums.sum, " with weight ", sums.weight); }

}  // namespace

std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits) {
  const int64_t cut = batch.rows / 3 + 1;
  if (cut >= batch.rows) return "";
  LossSums whole, first, second;
  try {
    ModelPart part(context, model, loss);
    if (splits) {
      whole = loss_sums_of(part, batch);
      first = loss_sums_of(part, batch.slice(0, cut));
      second = loss_sums_of(part, batch.slice(cut, batch.rows));
    } else {
      const Batch evaluated = copied(batch);
      const TensorList outputs = part.evaluate(evaluated);
      whole = loss_sums_of(part, outputs, evaluated, 0, batch.rows);
      first = loss_sums_of(part, outputs, evaluated, 0, cut);
      second = loss_sums_of(part, outputs, evaluated, cut, batch.rows);
    }
  } catch (const std::exception&) {
    return "";  // training reports the error
  }
  const bool weights = equal(whole.weight, first.weight + second.weight);
  if (weights && (equal(whole.sum, first.sum + second.sum) || !std::isfinite(whole.sum))) return "";
  return convoy::str("the loss is no sum over rows: ", batch.rows, " rows give ", text_of(whole), ", their first ", cut,
                     " give ", text_of(first), " and the other ", batch.rows - cut, " ", text_of(second),
                     "; a loss returns the sum over rows and their total weight, never a mean",
                     weights && splits ? ", and no block may mix rows in evaluation" : "");
}

}  // namespace convoy
