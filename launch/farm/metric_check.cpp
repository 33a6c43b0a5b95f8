#include "launch/farm/metric_check.h"

#include <algorithm>
#include <set>
#include <vector>

#include "core/config/run_config.h"
#include "launch/describe.h"
#include "strategies/catalogue.h"
#include "strategies/parts/members/catalogue.h"

namespace convoy {
namespace {

constexpr size_t most_described = 4;  // about half a second each

// Those that evaluate the same things; "" where nothing is evaluated.
std::string kind_of(const Json& config) {
  if (config.at("train").at("evaluate_every") == "never") return "";
  return str(config.at("model").dump(), config.at("data").dump(), config.at("loss").dump());
}

}  // namespace

std::optional<ConfigError> metric_mistake(const Farm& farm, const Mark& mark, const std::string& rank_program) {
  if (farm.metric.empty()) return std::nullopt;
  std::set<std::string> kinds, names;
  for (const Pipeline& pipeline : farm.pipelines) {
    const std::string kind = kind_of(pipeline.config);
    if (kind.empty() || !kinds.insert(kind).second) continue;
    if (kinds.size() > most_described) return std::nullopt;
    const std::string& strategy = pipeline.config.at("strategy").at("name").get_ref<const std::string&>();
    Json told;
    try {
      told = describe_run(rank_program, pipeline.config, "figures").at("figures");
    } catch (const Error&) {
      return std::nullopt;  // its own run will say why
    }
    if (told.is_null()) return std::nullopt;
    const EvaluationFigures figures = evaluation_figures_from_json(told);
    names.insert(figures.evaluated.begin(), figures.evaluated.end());
    // What an ensemble makes of its members' figures has names of its own.
    if (strategy_entry(strategy).members) {
      for (const std::string& name : figures.evaluated)
        for (const char* how : {"mean_", "vote_"}) names.insert(how + name);
      for (const std::string& name : figures.held_out) names.insert("out_of_fold_" + name);
    }
    if (names.count(farm.metric) != 0) return std::nullopt;
  }
  const std::vector<std::string> all(names.begin(), names.end());
  if (all.empty())
    return ConfigError(
        mark, "strategy.metric",
        str("is ", farm.metric,
            ", and no pipeline is evaluated; leave it out, or give them train.evaluate_every and rows to "
            "evaluate on"));
  const std::string near = nearest(farm.metric, all);
  return ConfigError(mark, "strategy.metric",
                     str("is ", farm.metric, ", and no pipeline's evaluation tells that; there are ", join(all, ", "),
                         near.empty() ? "" : "; did you mean " + near + "?"));
}

}  // namespace convoy
