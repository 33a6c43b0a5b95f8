#include "strategies/parts/members/early_stop.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace convoy {

EarlyStop::EarlyStop(const std::vector<MemberSettings>& members, std::string metric) : metric_(std::move(metric)) {
  for (const MemberSettings& member : members) patience_.push_back(member.patience);
  const auto count = static_cast<int64_t>(members.size());
  best_ = at::full({count}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  waited_ = at::zeros({count}, at::kLong);
  finished_ = at::zeros({count}, at::kBool);
}

void EarlyStop::add(const std::map<std::string, MetricValue>& figures) {
  if (std::all_of(patience_.begin(), patience_.end(), [](int64_t one) { return one == 0; })) return;
  const auto found = figures.find(metric_);
  const size_t count = patience_.size();
  if (found == figures.end() || (count > 1 && found->second.members.size() != count)) {
    std::vector<std::string> names;
    for (const auto& [name, figure] : figures)
      if (count == 1 || figure.members.size() == count) names.push_back(name);
    throw Error(Failure::config, str("strategy.early_stop.metric: members have no figure '", metric_,
                                     "'; an evaluation gives ", join(names, ", ")));
  }
  auto* best = best_.mutable_data_ptr<double>();
  auto* waited = waited_.mutable_data_ptr<int64_t>();
  auto* finished = finished_.mutable_data_ptr<bool>();
  for (size_t member = 0; member < count; ++member) {
    if (finished[member] || patience_[member] == 0) continue;
    const double value = count > 1 ? found->second.members[member] : found->second.value;
    const bool better =
        std::isfinite(value) &&
        (std::isnan(best[member]) || (found->second.lower_is_better ? value < best[member] : value > best[member]));
    waited[member] = better ? 0 : waited[member] + 1;
    if (better) best[member] = value;
    finished[member] = waited[member] >= patience_[member];
  }
}

void EarlyStop::restored() {
  const auto* waited = waited_.const_data_ptr<int64_t>();
  auto* finished = finished_.mutable_data_ptr<bool>();
  for (size_t member = 0; member < patience_.size(); ++member)
    finished[member] = patience_[member] > 0 && waited[member] >= patience_[member];
}

void EarlyStop::reset() {
  best_.fill_(std::numeric_limits<double>::quiet_NaN());
  waited_.zero_();
  finished_.zero_();
}

int64_t EarlyStop::training() const { return finished_.logical_not().sum().item<int64_t>(); }

std::vector<std::pair<std::string, at::Tensor>> EarlyStop::state() const {
  return {{"early_stop_best", best_}, {"early_stop_waited", waited_}, {"early_stop_finished", finished_}};
}

}  // namespace convoy
