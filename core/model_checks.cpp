#include "core/model_checks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/config/node.h"

namespace convoy {
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
