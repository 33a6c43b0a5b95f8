#include "core/metrics/best_metrics.h"

#include <cmath>

namespace convoy {
namespace {

Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

bool better(const MetricValue& metric, const Json& entry) {
  if (!std::isfinite(metric.value)) return false;
  const auto best = entry.find("best");
  if (best == entry.end() || !best->is_number()) return true;
  return metric.lower_is_better ? metric.value < best->get<double>() : metric.value > best->get<double>();
}

}  // namespace

void BestMetrics::add(const std::map<std::string, MetricValue>& values, int64_t step) {
  for (const auto& [name, metric] : values) {
    Json& entry = json_[name];
    entry["last"] = number(metric.value);
    if (metric.lower_is_better) entry["lower_is_better"] = true;
    if (better(metric, entry)) {
      entry["best"] = number(metric.value);
      entry["best_step"] = step;
    }
    if (metric.members.empty()) continue;
    entry["members"] = Json::array();
    for (double member : metric.members) entry["members"].push_back(number(member));
  }
}

}  // namespace convoy
