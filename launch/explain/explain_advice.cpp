#include "launch/explain/explain_advice.h"

#include <algorithm>
#include <cmath>

#include "core/base/text.h"
#include "core/files/files.h"
#include "launch/cli/commands.h"
#include "launch/cli/text_table.h"
#include "launch/machine/machine_load.h"
#include "launch/prepare/resume_path.h"
#include "strategies/plans/options/ensemble.h"

namespace convoy {
namespace {

// Reads ways.json of the folder; null where it is missing or unreadable.
Json recorded_choice(const std::string& folder) {
  const Json choice = Json::parse(read_file_if_any(folder + "/ways.json"), nullptr, false);
  return choice.is_object() && choice.value("taken", Json()).is_string() ? choice : Json();
}

std::string reason(const std::string& mode) {
  if (mode == "stacked") return "there is one rank";
  if (mode == "threads") return "one rank for each core set or GPU, as threads of one process";
  return "ranks of several hosts, of a launcher or of another backend than local are processes";
}

// Number of ranks of the checkpoint from which the run resumes, if the configuration leaves it open; else `planned`.
int64_t kept_ranks(const PreparedRun& run, const std::string& folder, int64_t planned) {
  if (run.config.launch.ranks > 0) return planned;
  const StoredConfig stored = resumed_config(folder, run.config.train.resume);
  if (stored.world_size <= 0) return planned;
  const Json before = stored.config.value("strategy", Json());
  const Json& now = run.config.resolved["strategy"];
  for (const char* key : {"name", "how", "members"})
    if (!before.is_object() || before.value(key, Json()) != now.value(key, Json())) return planned;
  return stored.world_size;
}

}  // namespace

void fix_mode(const PreparedRun& run, const std::string& folder, PlacedJob& placed) {
  const std::vector<ExecutionMode> modes = execution_modes_of(run.config);
  if (modes.empty()) return;
  const Json choice = recorded_choice(folder);
  const std::string mode = choice.is_null() ? mode_of(placed.job) : choice["taken"].get<std::string>();
  const auto planned_ranks = static_cast<int64_t>(placed.job.ranks.size());
  const int64_t ranks = kept_ranks(run, folder, planned_ranks);
  if (mode == mode_of(placed.job) && ranks == planned_ranks) return;
  PreparedRun planned = run;
  Json& resolved = planned.config.resolved;
  for (const ExecutionMode& known : modes)
    if (!choice.is_null() && known.name == mode) resolved["strategy"] = known.section;
  if (ranks != planned_ranks) resolved["launch"]["ranks"] = ranks;
  std::vector<std::string>& warnings = placed.warnings;
  try {
    planned.config = RunConfig::from_resolved(resolved);
    PlacedJob kept = placed_here(planned);
    // Ranks receive the user's configuration.
    for (const char* section : {"strategy", "launch"}) kept.job.config[section] = run.config.resolved[section];
    kept.warnings.push_back(str(execution_mode_key, ": auto keeps ", mode_of(kept.job), " on ", kept.job.ranks.size(),
                                " ranks, as this training began; --ranks changes the number, and results by rounding"));
    placed = std::move(kept);
  } catch (const ConfigError& error) {
    warnings.push_back(str(execution_mode_key, ": auto cannot keep ", mode, " on ", ranks,
                           " ranks, as this training began (", error.what(), "); results may differ by rounding"));
  }
}

Json choice_of(const PreparedRun& run, const std::string& folder, const Job& job) {
  if (execution_modes_of(run.config).empty()) return nullptr;
  const std::string taken = mode_of(job);
  const Json recorded = recorded_choice(folder);
  if (recorded.is_object() && recorded["taken"] == taken) return recorded;
  return {{"taken", taken}, {"because", reason(taken)}, {"tried", Json::array()}};
}

namespace {

constexpr double largest_error = 0.5;  // relative; predictions with larger errors decide nothing

double relative(const StepPrediction& step) { return step.seconds > 0 ? step.error / step.seconds : 0; }

std::string exchange_text(Exchange kind, double messages) {
  switch (kind) {
    case Exchange::all_reduce:
      return messages > 1.5 ? "the all-reduces" : "the all-reduce";
    case Exchange::gather:
      return "gathering";
    case Exchange::scatter:
      return "the reduce-scatter";
    case Exchange::send:
      return "sending";
  }
  return "sending";
}

// The largest term of the step that does not shrink with the number of ranks.
std::string reason(const PredictedCandidate& candidate, const PredictedCandidate& reference) {
  const StepPrediction& step = candidate.step;
  const std::string of = " of a " + human_seconds(reference.step.seconds) + " step";
  const ExchangeTime* largest = nullptr;
  for (const ExchangeTime& exchange : step.exchanges)
    if (largest == nullptr || exchange.exposed > largest->exposed) largest = &exchange;
  // Its share of computation and updates if they were divided evenly.
  const double even = candidate.rows / std::max(1.0, reference.rows) / std::max(1, candidate.ranks);
  const double computes_more = step.compute - reference.step.compute * even;
  const double updates_more = step.update - reference.step.update * even;
  const double most = std::max({step.exchange, step.idle, computes_more, updates_more});
  if (largest != nullptr && most == step.exchange)
    return str(exchange_text(largest->kind, largest->messages), " of ", human_bytes(largest->bytes),
               largest->kind == Exchange::all_reduce && largest->messages > 1.5 ? " take " : " takes ",
               human_seconds(largest->exposed), of);
  if (most == step.idle) return str("its ranks wait for each other for ", human_seconds(step.idle), of);
  if (most == updates_more) return str("every rank's update takes ", human_seconds(step.update), of);
  return str("a rank's share still computes for ", human_seconds(step.compute), of);
}

bool too_rough(const Estimate& speed) { return speed.error > speed.value; }

// `doubt`: text after the speed.
std::string described(const PredictedCandidate& candidate, const PredictedCandidate& reference,
                      const std::string& doubt = "") {
  const Estimate speed = speed_over(candidate, reference);
  if (too_rough(speed)) return candidate.name + " cannot be estimated (error above 100 %)";
  std::string text = str(candidate.name, " would be ", speed_text(speed.value), doubt);
  if (speed.value < 0.9 * candidate.ranks && candidate.ranks > 1) text += " because " + reason(candidate, reference);
  if (candidate.lower_frequency) {
    const PredictedCandidate rare{candidate.name, candidate.ranks, candidate.lower_frequency->rows,
                                  candidate.lower_frequency->step};
    const Estimate then = speed_over(rare, reference);
    if (then.value > 1.1 * speed.value)
      text += str("; sync.every ", candidate.lower_frequency->every, " would be ", speed_text(then.value),
                  ", which may cost quality (docs/strategies/synchronisation.md)");
  }
  return text;
}

}  // namespace

Estimate speed_over(const PredictedCandidate& candidate, const PredictedCandidate& reference) {
  if (candidate.step.seconds <= 0 || reference.step.seconds <= 0 || reference.rows <= 0) return {};
  const double speed = candidate.rows / candidate.step.seconds * reference.step.seconds / reference.rows;
  return {speed, speed * std::hypot(relative(candidate.step), relative(reference.step))};
}

std::string speed_text(double speed) {
  return formatted(speed >= 9.95 ? "%.0f×" : speed >= 0.095 ? "%.1f×" : "%.2f×", speed);
}

StepPrediction widened(StepPrediction step, double load) {
  // If others use a share f of the cores, 1 - f seconds of work take at most one second.
  constexpr double nearly_all = 0.95;
  const double share = std::min(std::max(0.0, load), nearly_all);
  step.error = std::hypot(step.error, step.seconds * share / (1 - share));
  return step;
}

std::string advice_text(const PredictedCandidate& reference, const std::vector<PredictedCandidate>& others,
                        double load) {
  if (!reference.step.reason.empty()) return "";
  std::vector<PredictedCandidate> known;
  for (const PredictedCandidate& one : others)
    if (one.step.reason.empty() && one.step.seconds > 0 &&
        !(one.name == reference.name && one.ranks == reference.ranks))
      known.push_back(one);
  if (known.empty()) return "";
  std::stable_sort(known.begin(), known.end(), [&](const PredictedCandidate& a, const PredictedCandidate& b) {
    const Estimate one = speed_over(a, reference), other = speed_over(b, reference);
    return std::make_pair(!too_rough(one), one.value) > std::make_pair(!too_rough(other), other.value);
  });
  const PredictedCandidate& best = known.front();
  const Estimate gain = speed_over(best, reference);
  std::vector<std::string> rest;
  const bool busy = load >= busy_machine;
  const bool unsure = busy || (gain.error > largest_error * gain.value && gain.value + 3 * gain.error > 1);
  for (size_t i = gain.value > 1 && !unsure ? 1 : 0; i < known.size(); ++i)
    rest.push_back(described(known[i], reference));
  const std::string load_text = str("other work took ", std::lround(100 * load), " % of the cores");
  if (too_rough(gain))
    return str("too uncertain to recommend anything: all errors are above 100 %", busy ? "; " + load_text : "",
               "; measure again on an idle machine\n");
  std::string text;
  if (busy) {
    text = str("too uncertain to recommend anything (", load_text,
               "): measure again on an idle machine; as measured now, ");
  } else if (unsure) {
    text = str("too uncertain to recommend anything (± ", std::lround(100 * gain.error / gain.value),
               " %), as where other work takes the cores: measure again on an idle machine; as measured now, ");
  } else if (gain.value <= 1) {
    text = "stay on one device: ";
  } else if (gain.value - gain.error <= 1) {
    const std::string doubt =
        str(" (within the prediction's error, ± ", std::lround(100 * gain.error / gain.value), " %)");
    text = str("stay on one device, or try both: ", described(best, reference, doubt), rest.empty() ? "" : "; ");
  } else {
    text = str("take ", best.name, best.ranks > 1 ? str(" on ", best.ranks, " ranks") : "", ": ",
               speed_text(gain.value), " of ", reference.name, " (± ", std::lround(100 * gain.error / gain.value),
               " %)", rest.empty() ? "" : "; ");
  }
  return text + join(rest, "; ") + "\n";
}

}  // namespace convoy
