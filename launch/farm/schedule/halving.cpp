#include "launch/farm/schedule/halving.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/config/node.h"

namespace convoy {
namespace {

constexpr int64_t most = std::numeric_limits<int64_t>::max();

// `value` times eta^power; the largest number if it is larger.
int64_t scaled(int64_t value, int64_t eta, int power) {
  for (; power > 0; --power) {
    if (value > most / eta) return most;
    value *= eta;
  }
  return value;
}

// Trials that continue after a rung.
size_t kept_after(int rung, size_t trials, int64_t eta) {
  const auto kept = static_cast<size_t>(static_cast<int64_t>(trials) / scaled(1, eta, rung + 1));
  return std::max<size_t>(1, kept);
}

bool has_reached(const Trial& trial, int rung) {
  return trial.ended || trial.values.size() > static_cast<size_t>(rung);
}

std::optional<double> value_at(const Trial& trial, int rung) {
  const auto at = static_cast<size_t>(rung);
  return at < trial.values.size() ? trial.values[at] : trial.last;
}

}  // namespace

HalvingPlan halving_plan(const std::vector<Trial>& trials, int64_t eta, bool lower_is_better) {
  HalvingPlan plan;
  std::vector<size_t> active;
  for (size_t i = 0; i < trials.size(); ++i)
    if (trials[i].lost < 0) active.push_back(i);
  for (;; ++plan.rung) {
    plan.to_end = plan.rung > 0 && kept_after(plan.rung - 1, trials.size(), eta) == 1;
    for (size_t i : active)
      if (plan.to_end ? !trials[i].ended : !has_reached(trials[i], plan.rung)) plan.running.push_back(i);
    if (plan.to_end || !plan.running.empty() || active.empty()) return plan;
    const auto worth = [&](size_t i) {
      const std::optional<double> value = value_at(trials[i], plan.rung);
      constexpr double worst = std::numeric_limits<double>::infinity();
      return std::make_pair(!value, !value ? worst : lower_is_better ? *value : -*value);
    };
    std::vector<size_t> order = active;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth(a) < worth(b); });
    size_t kept = std::min(order.size(), kept_after(plan.rung, trials.size(), eta));
    while (kept > 0 && !value_at(trials[order[kept - 1]], plan.rung)) --kept;
    for (size_t i = kept; i < order.size(); ++i) plan.losers.emplace_back(order[i], plan.rung);
    order.resize(kept);
    std::sort(order.begin(), order.end());
    active = std::move(order);
  }
}

Interval rung_point(const HalvingOptions& options, int rung) {
  const int64_t point = scaled(options.first.every, options.eta, rung);
  return point > most_epochs ? Interval{} : Interval{options.first.unit, point};
}

int rungs_of(size_t trials, int64_t eta) {
  int rungs = 1;
  while (kept_after(rungs - 1, trials, eta) > 1) ++rungs;
  return rungs;
}

}  // namespace convoy
