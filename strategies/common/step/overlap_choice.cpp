#include "strategies/common/step/overlap_choice.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"

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

std::string kept_file(const Context& context) { return context.folder + "/overlap.json"; }

// Returns what the choice depends on and a resumed run may change.
std::string where(const Context& context) {
  return str(context.host, ", ", context.local_size, " of ", context.size, " ranks, threads: ", context.threads);
}

// Returns the seconds that an earlier part of the run measured here: without and with overlap; zeros: none.
at::Tensor kept_seconds(const Context& context) {
  const Json kept = parsed_json(read_file_if_any(kept_file(context)));
  if (text_in(kept, "where") != where(context)) return at::zeros({2}, at::kDouble);
  return at::tensor({number_in(kept, "seconds_without", 0), number_in(kept, "seconds_with", 0)}, at::kDouble);
}

}  // namespace

OverlapChoice::OverlapChoice(const Context& context, CommunicatorPtr group, std::optional<bool> configured,
                             bool measures)
    : context_(context),
      group_(std::move(group)),
      overlaps_(configured.value_or(true)),
      measuring_(!configured && measures && group_->size() > 1) {
  if (!measuring_ || context_.config.train.resume != "auto") return;
  // Hosts may not share the folder, so one rank of the group reads it.
  at::Tensor seconds = group_->rank() == 0 ? kept_seconds(context_) : at::zeros({2}, at::kDouble);
  group_->broadcast(seconds, 0, {"seconds with and without overlap", {}})->wait();
  if ((seconds > 0).all().item<bool>()) take(seconds);
}

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
  at::Tensor seconds = at::tensor({median(seconds_[0]), median(seconds_[1])}, at::kDouble);
  group_->all_reduce(seconds, ReduceOp::sum, {"seconds with and without overlap", {}})->wait();
  Json choice = take(seconds / group_->size());
  if (context_.rank != 0 || context_.folder.empty()) return;
  choice["where"] = where(context_);
  try {
    write_whole(kept_file(context_), choice.dump() + "\n", false);
  } catch (const Error& error) {
    log::warning(str(error.what(), "; the run continues, and measures overlap again when it resumes"));
  }
}

Json OverlapChoice::take(const at::Tensor& seconds) {
  measuring_ = false;
  const double without = seconds[0].item<double>(), with = seconds[1].item<double>();
  overlaps_ = with <= without;
  Json choice{{"on", overlaps_}, {"seconds_with", with}, {"seconds_without", without}};
  context_.add_to_summary({{"overlap", choice}});
  if (group_->rank() == 0)
    log::info(str("overlap: ", overlaps_ ? "on" : "off", ", because an update takes ", human_seconds(with),
                  " with it and ", human_seconds(without), " without it"));
  return choice;
}

}  // namespace convoy
