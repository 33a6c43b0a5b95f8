// `convoy evaluate`: loss and metrics of the checkpoint, computed by the strategy of the run on all ranks.
//
// Each rank holds its part of the model and reads its share of the rows. Sums and weights are added in float64, so the
// metrics do not depend on the number of ranks, except for the rounding within rows.
#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/files/limits.h"
#include "core/metrics/sink.h"
#include "core/rank_state/position.h"
#include "core/training/evaluation.h"
#include "core/training/length.h"
#include "launch/rank/rank.h"
#include "launch/rank/use/use.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

Json values_json(const std::map<std::string, MetricValue>& metrics) {
  Json values = Json::object();
  for (const auto& [name, metric] : metrics) {
    values[name] = {{"value", number_or_text(metric.value)}};
    if (metric.lower_is_better) values[name]["lower_is_better"] = true;
    for (const double member : metric.members) values[name]["members"].push_back(number_or_text(member));
  }
  return values;
}

class EvaluateUse : public Use {
 public:
  Json run(UseContext& use) override {
    Context context = use.rank();  // outlives the strategy
    context.state->phase(building_phase);
    const RunConfig& config = context.config;
    std::unique_ptr<Strategy> strategy = use.registry().strategies.make(config.strategy.name, config.strategy.options);
    const Components& components = use.components();
    const Sampling before = strategy->sampling();
    const int64_t rows = components.data->size(Split::train);
    const TrainingLength length =
        training_length(config.train, rows_per_epoch(before, config, rows), context.mesh.degree("data"));
    context.steps_per_epoch = length.steps_per_epoch;
    context.total_steps = length.total_steps;
    strategy->setup(context, use.injector().decorate(components.model), components.loss);
    context.state->phase(loading_phase);
    Checkpoints(context, context.folder + "/checkpoints", 0).load(*strategy, use.checkpoint(), components.data.get());
    strategy->state_restored();
    strategy->flush_for_evaluation();

    const Sampling sampling = strategy->sampling();
    const Sampler sampler(rows, length.global_rows, row_sample_of(sampling, config));
    Evaluator evaluation(context, {components.data, components.transforms, strategy.get(), length.global_rows},
                         sampler);
    const std::string split = use.options().at("split");
    check_rows(use, evaluation, split);
    const auto start = Clock::now();
    const int64_t total = (split != "training" ? evaluation.rows() : 0) + (split != "held-out" ? rows : 0);
    int64_t evaluated = 0, batches = 0;
    const auto abandoned = [&] {  // called before each batch
      use.progress(std::min(evaluated + batches++ * length.global_rows, total), total, "rows");
      return false;
    };
    std::map<std::string, MetricValue> metrics;
    const LoaderOptions options = share_options(context, sampling);
    if (split != "training") {
      if (auto values = evaluation.run(options, abandoned)) add(*values, metrics);
      evaluated += evaluation.rows();
      batches = 0;
    }
    if (split != "held-out") {
      if (auto values = evaluation.run_on_training_rows(options, abandoned)) add(*values, metrics);
      evaluated += rows;
    }
    const double seconds = seconds_since(start);
    return {{"rows", evaluated}, {"seconds", seconds}, {"metrics", values_json(metrics)}};
  }

 private:
  static void check_rows(const UseContext& use, const Evaluator& evaluation, const std::string& split) {
    if (split == "held-out" && !evaluation.possible())
      refuse_data(use.config(),
                  "holds no rows out for evaluation; add --split all, and for other data --set data.path=FILE too");
    if (split == "held-out" || can_evaluate_training_rows(*use.components().data)) return;
    refuse_data(use.config(), str("has training rows of another kind than its evaluation rows, so --split ", split,
                                  " has no metrics; leave --split out"));
  }

  // Adds the rows of a second split.
  static void add(const std::map<std::string, MetricValue>& values, std::map<std::string, MetricValue>& into) {
    for (const auto& [name, value] : values) {
      const auto [found, fresh] = into.emplace(name, value);
      if (fresh) continue;
      MetricValue& sum = found->second;
      const double weight = sum.weight + value.weight;
      const auto mean = [&](double a, double b) { return (a * sum.weight + b * value.weight) / weight; };
      sum.value = mean(sum.value, value.value);
      for (size_t i = 0; i < sum.members.size() && i < value.members.size(); ++i)
        sum.members[i] = mean(sum.members[i], value.members[i]);
      sum.weight = weight;
    }
  }
};

}  // namespace

std::unique_ptr<Use> make_evaluate_use() { return std::make_unique<EvaluateUse>(); }

}  // namespace convoy
