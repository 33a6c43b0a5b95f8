#include "strategies/common/step/overlap_choice.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/files/files.h"
#include "core/files/limits.h"
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

// Reads seconds of an update without and with overlap from the file; zeros if it has none for this layout.
at::Tensor kept_seconds(const std::string& file, const std::string& layout) {
  const Json kept = parsed_json(read_file_if_any(file));
  if (text_in(kept, "layout") != layout) return at::zeros({2}, at::kDouble);
  return at::tensor({number_in(kept, "seconds_without", 0), number_in(kept, "seconds_with", 0)}, at::kDouble);
}

}  // namespace

OverlapChoice::OverlapChoice(const Context& context, CommunicatorPtr group, std::optional<bool> configured,
                             bool measures, int number)
    : context_(context),
      group_(std::move(group)),
      overlaps_(configured.value_or(true)),
      measuring_(!configured && measures && group_->size() > 1) {
  // Only rank 0 reads and writes the file; of several groups each would write it.
  const bool keeps = !context.folder.empty() && group_->size() == context.size;
  if (!measuring_ || !keeps || context.config.train.resume != "auto") return;
  file_ = context.folder + "/overlap.json";
  layout_ =
      str(context.host, ", ", group_->backend(), ", ranks: ", context.size, " (", context.process_ranks,
          " in this process, ", context.local_size, " on this host), threads: ", context.threads, ", object ", number);
  at::Tensor seconds = context.rank == 0 ? kept_seconds(file_, layout_) : at::zeros({2}, at::kDouble);
  group_->broadcast(seconds, 0, {"seconds with and without overlap", {}})->wait();
  if ((seconds > 0).all().item<bool>()) take(seconds, " (measured before the resume)");
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
    seconds_[overlaps_].push_back(seconds_since(begin_));
  ++updates_;
}

void OverlapChoice::decide() {
  at::Tensor seconds = at::tensor({median(seconds_[0]), median(seconds_[1])}, at::kDouble);
  group_->all_reduce(seconds, ReduceOp::sum, {"seconds with and without overlap", {}})->wait();
  Json choice = take(seconds / group_->size(), "");
  if (context_.rank != 0 || file_.empty()) return;
  choice["layout"] = layout_;
  try {
    write_whole(file_, choice.dump() + "\n", false);
  } catch (const Error& error) {
    log::warning(str(error.what(), "; the run continues, and measures overlap again when it resumes"));
  }
}

Json OverlapChoice::take(const at::Tensor& seconds, const char* when) {
  measuring_ = false;
  const double without = seconds[0].item<double>(), with = seconds[1].item<double>();
  overlaps_ = with <= without;
  Json choice{{"on", overlaps_}, {"seconds_with", with}, {"seconds_without", without}};
  context_.add_to_summary({{"overlap", choice}});
  if (group_->rank() == 0)
    log::info(str("overlap: ", overlaps_ ? "on" : "off", ", because an update takes ", human_seconds(with),
                  " with it and ", human_seconds(without), " without it", when));
  return choice;
}

}  // namespace convoy
