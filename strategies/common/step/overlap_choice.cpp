#include "strategies/common/step/overlap_choice.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "core/base/text.h"

namespace convoy {
namespace {

constexpr int warm_updates = 2;  // memory is allocated and buckets get their layout
// Four phases: with overlap, without, with, without. A phase's first update is not counted, because the update before
// it may have gathered ahead.
constexpr int phases = 4, phase_updates = 4;

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

OverlapChoice::OverlapChoice(std::optional<bool> configured, bool measures, CommunicatorPtr group,
                             std::function<void(const Json&)> report)
    : group_(std::move(group)),
      report_(std::move(report)),
      overlaps_(configured.value_or(true)),
      measuring_(!configured && measures && group_->size() > 1) {}

void OverlapChoice::begin_update() {
  if (!measuring_) return;
  if (updates_ == warm_updates + phases * phase_updates) return decide();
  overlaps_ = updates_ < warm_updates || (updates_ - warm_updates) / phase_updates % 2 == 0;
  begin_ = Clock::now();
}

void OverlapChoice::end_update() {
  if (!measuring_) return;
  if (updates_ >= warm_updates && (updates_ - warm_updates) % phase_updates > 0)
    seconds_[overlaps_].push_back(std::chrono::duration<double>(Clock::now() - begin_).count());
  ++updates_;
}

void OverlapChoice::decide() {
  measuring_ = false;
  at::Tensor sums = at::tensor({median(seconds_[0]), median(seconds_[1])}, at::kDouble);
  group_->all_reduce(sums, ReduceOp::sum, {"seconds with and without overlap", {}})->wait();
  const double without = sums[0].item<double>() / group_->size(), with = sums[1].item<double>() / group_->size();
  overlaps_ = with <= without;
  report_({{"overlap", {{"on", overlaps_}, {"seconds_with", with}, {"seconds_without", without}}}});
  if (group_->rank() == 0)
    log::info(str("overlap: ", overlaps_ ? "on" : "off", ", because an update takes ", human_seconds(with),
                  " with it and ", human_seconds(without), " without it"));
}

}  // namespace convoy
