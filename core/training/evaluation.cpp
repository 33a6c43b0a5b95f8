#include "core/training/evaluation.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/catalogue/declared_schema.h"
#include "core/data/rows.h"

namespace convoy {

Evaluator::Evaluator(const Context& context, EvaluationComponents components, const Sampler& sampler)
    : context_(context),
      components_(std::move(components)),
      sampler_(sampler),
      same_metrics_(context),
      held_out_(components_.strategy->capabilities().held_out_evaluation),
      holds_out_(sampler.row_sample().held_out() > 0 &&
                 (held_out_ != nullptr || components_.strategy->sampling().job_members == 0) &&
                 can_evaluate_training_rows(*components_.data)) {}

std::optional<Evaluator::Metrics> Evaluator::run(const LoaderOptions& options, const std::function<bool()>& abandoned) {
  std::optional<Metrics> values = Metrics();
  if (rows() > 0)
    values = evaluated_on(Loader(components_.data, components_.transforms, components_.batch_rows, options), "evaluate",
                          abandoned, [this](const Batch& batch) { return components_.strategy->evaluate(batch); });
  if (!holds_out_ || !values) return values;
  const std::optional<Metrics> held_out = held_out_rows(options, abandoned);
  if (!held_out) return std::nullopt;
  for (const auto& [name, value] : *held_out) (*values)["out_of_fold_" + name] = value;
  return values;
}

std::optional<Evaluator::Metrics> Evaluator::run_on_training_rows(const LoaderOptions& options,
                                                                  const std::function<bool()>& abandoned) {
  return evaluated_on(Loader(components_.data, components_.transforms, components_.batch_rows, options, Split::train),
                      "training rows", abandoned,
                      [this](const Batch& batch) { return components_.strategy->evaluate(batch); });
}

std::optional<Evaluator::Metrics> Evaluator::evaluated_on(Loader loader, const std::string& kind,
                                                          const std::function<bool()>& abandoned,
                                                          const Evaluate& evaluate) {
  MetricAccumulator metrics;
  while (std::optional<Batch> batch = loader.next()) {
    if (abandoned()) return std::nullopt;
    context_.state->phase("evaluating");  // repeated: its time stamp shows progress
    metrics.add(evaluate(*batch));
  }
  same_metrics_.check(kind, metrics.names());
  return metrics.reduce(*context_.world);
}

// Evaluates each member on the fold that it leaves out, or the single model on its held-out rows.
std::optional<Evaluator::Metrics> Evaluator::held_out_rows(LoaderOptions options,
                                                           const std::function<bool()>& abandoned) {
  options.samples = held_out_ != nullptr ? held_out_->samples() : std::vector<MemberSample>();
  return evaluated_on(
      Loader::held_out(components_.data, components_.transforms, sampler_, components_.batch_rows, options), "held out",
      abandoned, [this](const Batch& batch) {
        return held_out_ != nullptr ? held_out_->evaluate_held_out(batch) : components_.strategy->evaluate(batch);
      });
}

LoaderOptions share_options(const Context& context, const Sampling& sampling) {
  LoaderOptions options = LoaderOptions::from(context.config.data.options, context.config.seed);
  options.share_index = sampling.index;
  options.share_count = sampling.count;
  options.micro_batches = sampling.micro_batches;
  options.device = context.devices.front();
  options.samples = sampling.samples;
  options.times = context.times;
  return options;
}

bool WatchedMetric::add(const std::map<std::string, MetricValue>& metrics, int64_t step) {
  if (!watches()) return false;
  const auto found = metrics.find(config_.metric);
  if (found == metrics.end()) {
    std::vector<std::string> names;
    for (const auto& [name, metric] : metrics) names.push_back(name);
    const std::string near = nearest(config_.metric, names);
    throw Error(Failure::config, key_, ".metric: is ", config_.metric, ", and the metrics of an evaluation are ",
                join(names, ", "), near.empty() ? "" : str("; did you mean ", near, "?"));
  }
  const double value = found->second.value;
  const bool lower = config_.direction == "auto" ? found->second.lower_is_better : config_.direction == "minimize";
  const bool better = is_better(value, best_, lower);
  waited_ = better ? 0 : waited_ + 1;
  if (!better) return false;
  best_ = value;
  step_ = step;
  return true;
}

Json WatchedMetric::json() const {
  if (!watches() || (std::isnan(best_) && waited_ == 0)) return nullptr;
  Json json{{"metric", config_.metric}, {"direction", config_.direction}, {"waited", waited_}};
  if (!std::isnan(best_)) json.update({{"value", best_}, {"step", step_}});
  return json;
}

void WatchedMetric::restore(const Json& json) {
  if (!json.is_object() || json.value("metric", "") != config_.metric ||
      json.value("direction", "") != config_.direction)
    return;
  waited_ = json.value("waited", int64_t{0});
  best_ = std::numeric_limits<double>::quiet_NaN();
  if (!json.contains("value")) return;
  best_ = json["value"].get<double>();
  step_ = json.value("step", int64_t{0});
}

std::string WatchedMetric::text() const {
  return std::isnan(best_) ? str("no finite ", config_.metric) : str(config_.metric, " ", best_, " of step ", step_);
}

}  // namespace convoy
