// The supervisor's part of strategy.halving.
#include <algorithm>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/rank_state/summary.h"
#include "launch/farm/report/report.h"
#include "launch/farm/run/supervisor.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

std::string value_text(const std::optional<double>& value) { return value ? formatted("%.4g", *value) : "none"; }

}  // namespace

Trial FarmSupervisor::trial_of(const PipelineState& entry) const {
  Trial trial;
  trial.ended = is_over(entry.status);
  trial.lost = entry.lost_at;
  if (entry.status == PipelineState::Status::stopped) return trial;  // cancelled: it displaces no other
  trial.values = entry.rung_values;
  if (entry.status != PipelineState::Status::done) return trial;
  const Json value = last_metric(read_summary(entry.folder), run_.farm.metric);
  if (value.is_number()) trial.last = value.get<double>();
  return trial;
}

bool FarmSupervisor::lower_is_better() const {
  std::vector<PipelineResult> results;
  for (const PipelineState& entry : pipelines_) {
    PipelineResult result;
    result.summary = read_summary(entry.folder);
    results.push_back(std::move(result));
  }
  return convoy::lower_is_better(results, {run_.farm.metric, run_.farm.direction});
}

// Ends the worse trials of a rung that all have reached, and queues the others for the next one.
void FarmSupervisor::advance_rungs() {
  if (!halves() || stopping_ || advancing_) return;
  const bool some_run = std::any_of(pipelines_.begin(), pipelines_.end(), [](const PipelineState& entry) {
    return entry.status == PipelineState::Status::waiting || entry.status == PipelineState::Status::running;
  });
  if (some_run) return;  // they have not reached the rung
  std::vector<Trial> trials;
  for (const PipelineState& entry : pipelines_) trials.push_back(trial_of(entry));
  const HalvingPlan plan = halving_plan(trials, run_.farm.halving.eta, lower_is_better());
  for (const auto& [job, rung] : plan.losers) {
    PipelineState& entry = pipelines_[job];
    entry.lost_at = rung;
    // A failed trial keeps its status; the same command retries it.
    if (entry.status == PipelineState::Status::paused) {
      entry.status = PipelineState::Status::lost;
      const auto at = std::min(static_cast<size_t>(rung), entry.rung_values.size() - 1);
      entry.result.message =
          str("lost at rung ", rung + 1, " with ", run_.farm.metric, " ", value_text(entry.rung_values[at]));
      record(entry, "lost", {{"rung", rung}});
      if (!entry.rung_values[at])
        console_.log(str("halving: ", entry.pipeline.name, " is lost at rung ", rung + 1, ", because it reported no ",
                         run_.farm.metric));
    }
  }
  if (plan.running.empty()) return;
  const Interval point = plan.to_end ? Interval{} : rung_point(run_.farm.halving, plan.rung);
  const std::string goal = point.unit == Interval::Unit::never ? "the end" : interval_text(to_json(point));
  if (plan.to_end)
    console_.log(str("halving: ", pipelines_[plan.running.front()].pipeline.name, " is left and trains to the end"));
  else
    console_.log(str("halving: rung ", plan.rung + 1, " of ", rungs_of(trials.size(), run_.farm.halving.eta), ": ",
                     counted(plan.running.size(), "pipeline trains", "pipelines train"), " to ", goal));
  advancing_ = true;
  const bool outer = std::exchange(scheduling_, true);  // none starts before all are queued
  for (size_t job : plan.running) {
    pipelines_[job].pause = point;
    queue(static_cast<int>(job));
  }
  scheduling_ = outer;
  advancing_ = false;
  advance_rungs();  // if none could be queued
}

}  // namespace convoy
