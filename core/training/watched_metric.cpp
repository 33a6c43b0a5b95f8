#include "core/training/watched_metric.h"

#include <cmath>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace convoy {

bool WatchedMetric::add(const std::map<std::string, MetricValue>& metrics, int64_t step) {
  if (!watches()) return false;
  const auto found = metrics.find(config_.metric);
  if (found == metrics.end()) {
    std::vector<std::string> names;
    for (const auto& [name, metric] : metrics) names.push_back(name);
    const std::string near = nearest(config_.metric, names);
    throw Error(Failure::config, key_, ".metric: is ", config_.metric, ", and an evaluation gives ", join(names, ", "),
                near.empty() ? "" : str("; did you mean ", near, "?"));
  }
  const double value = found->second.value;
  const bool lower = config_.direction == "auto" ? found->second.lower_is_better : config_.direction == "minimize";
  const bool better = std::isfinite(value) && (!any_ || (lower ? value < best_ : value > best_));
  waited_ = better ? 0 : waited_ + 1;
  if (!better) return false;
  any_ = true;
  best_ = value;
  step_ = step;
  return true;
}

Json WatchedMetric::json() const {
  if (!watches() || (!any_ && waited_ == 0)) return nullptr;
  Json json{{"metric", config_.metric}, {"direction", config_.direction}, {"waited", waited_}};
  if (any_) json.update({{"value", best_}, {"step", step_}});
  return json;
}

void WatchedMetric::restore(const Json& json) {
  if (!json.is_object() || json.value("metric", "") != config_.metric ||
      json.value("direction", "") != config_.direction)
    return;
  waited_ = json.value("waited", int64_t{0});
  any_ = json.contains("value");
  if (!any_) return;
  best_ = json["value"].get<double>();
  step_ = json.value("step", int64_t{0});
}

std::string WatchedMetric::text() const {
  return any_ ? str(config_.metric, " ", best_, " of step ", step_) : str("no finite ", config_.metric);
}

}  // namespace convoy
