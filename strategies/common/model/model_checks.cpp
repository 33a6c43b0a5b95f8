#include "strategies/common/model/model_checks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/base/error.h"
#include "core/config/node.h"
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

namespace {

constexpr size_t longest_name = 64;
constexpr char held_out_prefix[] = "out_of_fold_";

[[noreturn]] void refuse(const std::string& reason) { throw Error(Failure::training, reason); }

// Checks for shape [] or [members] and real numbers; `floating`: integers are refused.
void check_number(const std::string& what, const at::Tensor& value, int64_t members, bool floating) {
  if (!value.defined()) refuse(what + " is undefined");
  const bool fits = members > 0 ? value.dim() == 1 && value.size(0) == members : value.dim() == 0;
  if (!fits)
    refuse(convoy::str(what, " has shape ", value.sizes(), " and must have ",
                       members > 0 ? convoy::str("[", members, "], one number for each member")
                                   : std::string("[], one number: sum over rows, and over all else")));
  const at::ScalarType dtype = value.scalar_type();
  if (at::isFloatingType(dtype) || (!floating && at::isIntegralType(dtype, /*includeBool=*/false))) return;
  refuse(convoy::str(what, " is of ", dtype, " and must be of ", floating ? "floating-point" : "real", " numbers"));
}

// Counts of items: [items] or [members, items].
void check_counts(const Metric& metric, int64_t members) {
  const int64_t dims = members > 0 ? 2 : 1;
  if (!metric.sum.defined() || metric.sum.dim() != dims || (members > 0 && metric.sum.size(0) != members))
    refuse(convoy::str("metric '", metric.name, "': its counts are ",
                       metric.sum.defined() ? convoy::str("of shape ", metric.sum.sizes()) : "undefined", ", not ",
                       members > 0 ? convoy::str("[", members, ", items]") : "[items]"));
}

void check_name(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string("_-.@/+%:").find(static_cast<char>(c)) != std::string::npos;
  };
  if (name.empty()) refuse("a metric has no name");
  if (name.size() > longest_name) refuse(convoy::str("a metric's name has more than ", longest_name, " characters"));
  if (!std::all_of(name.begin(), name.end(), allowed))
    refuse(convoy::str("metric ", shown(name), ": a name has letters, digits and _ - . @ / + % : only"));
  if (name == "loss") refuse("metric 'loss': that name is the loss's own; choose another");
  if (name.rfind(held_out_prefix, 0) == 0)
    refuse(convoy::str("metric '", name, "': names with ", held_out_prefix, " are for rows that folds hold out"));
}

}  // namespace

void check_outputs(const TensorList& outputs) {
  if (outputs.empty()) refuse("returned no tensor; a block returns at least one");
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined()) refuse(convoy::str("returned an undefined tensor as output ", i));
}

void check_examples(const Examples& examples) {
  if (!examples.prediction.defined()) refuse("the prediction is undefined (Model::examples)");
}

Loss checked_loss(Loss loss, const Layers& layers) {
  check_number("its sum", loss.sum, layers.members(), true);
  check_number("its weight", loss.weight, layers.members(), false);
  loss.weight = loss.weight.detach().to(loss.sum.device());
  return loss;
}

void check_graph(const Loss& loss, int64_t rows) {
  if (loss.sum.requires_grad() || rows == 0) return;
  if (loss.weight.count_nonzero().item<int64_t>() == 0) return;  // nothing is counted, as if no row qualifies
  refuse(
      "it has no graph, so nothing would be trained: no trained parameter takes part in it. Look for detach(), a "
      "NoGradGuard, or a number that item() took from a tensor; or are all parameters frozen?");
}

std::vector<Metric> checked_metrics(std::vector<Metric> metrics, const Layers& layers) {
  const auto options = at::TensorOptions(at::kDouble).device(layers.device());
  for (size_t i = 0; i < metrics.size(); ++i) {
    Metric& metric = metrics[i];
    check_name(metric.name);
    for (size_t j = 0; j < i; ++j)
      if (metrics[j].name == metric.name) refuse(convoy::str("metric '", metric.name, "' is given twice"));
    if (metric.form == Metric::Form::ratio)
      check_number(convoy::str("metric '", metric.name, "': its sum"), metric.sum, layers.members(), false);
    else
      check_counts(metric, layers.members());
    check_number(convoy::str("metric '", metric.name, "': its weight"), metric.weight, layers.members(), false);
    metric.sum = metric.sum.detach().to(options);
    metric.weight = metric.weight.detach().to(options);
  }
  return metrics;
}

}  // namespace convoy
