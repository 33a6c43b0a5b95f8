#include "launch/explain_advice.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/text.h"
#include "launch/machine_load.h"

namespace convoy {
namespace {

constexpr double half = 0.5;  // an error of more than half of what is predicted is no ground for a choice

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

// The part of its step that one rank's step has not, or has as large.
std::string reason(const Contender& contender, const Contender& reference) {
  const StepPrediction& step = contender.step;
  const std::string of = " of a " + human_seconds(reference.step.seconds) + " step";
  const ExchangePart* largest = nullptr;
  for (const ExchangePart& part : step.exchanges)
    if (largest == nullptr || part.shown > largest->shown) largest = &part;
  // What it would compute and update if that were shared out evenly.
  const double even = contender.rows / std::max(1.0, reference.rows) / std::max(1, contender.ranks);
  const double computes_more = step.compute - reference.step.compute * even;
  const double updates_more = step.update - reference.step.update * even;
  const double most = std::max({step.exchange, step.idle, computes_more, updates_more});
  if (largest != nullptr && most == step.exchange)
    return str(exchange_text(largest->kind, largest->messages), " of ", human_bytes(largest->bytes),
               largest->kind == Exchange::all_reduce && largest->messages > 1.5 ? " take " : " takes ",
               human_seconds(largest->shown), of);
  if (most == step.idle) return str("its ranks wait for each other for ", human_seconds(step.idle), of);
  if (most == updates_more) return str("every rank's update takes ", human_seconds(step.update), of);
  return str("a rank's share still computes for ", human_seconds(step.compute), of);
}

// `doubt`: said of its speed.
std::string described(const Contender& contender, const Contender& reference, const std::string& doubt = "") {
  const Estimate speed = speed_over(contender, reference);
  std::string text = str(contender.name, " would be ", speed_text(speed.value), doubt);
  if (speed.value < 0.9 * contender.ranks && contender.ranks > 1) text += " because " + reason(contender, reference);
  if (contender.rarely) {
    const Contender rare{contender.name, contender.ranks, contender.rarely->rows, contender.rarely->step};
    const Estimate then = speed_over(rare, reference);
    if (then.value > 1.1 * speed.value)
      text += str("; sync.every ", contender.rarely->every, " would be ", speed_text(then.value),
                  ", which may cost quality (docs/strategies/synchronisation.md)");
  }
  return text;
}

}  // namespace

Estimate speed_over(const Contender& contender, const Contender& reference) {
  if (contender.step.seconds <= 0 || reference.step.seconds <= 0 || reference.rows <= 0) return {};
  const double speed = contender.rows / contender.step.seconds * reference.step.seconds / reference.rows;
  return {speed, speed * std::hypot(relative(contender.step), relative(reference.step))};
}

std::string speed_text(double speed) {
  char text[32];
  std::snprintf(text, sizeof text, speed >= 9.95 ? "%.0f×" : speed >= 0.095 ? "%.1f×" : "%.2f×", speed);
  return text;
}

StepPrediction widened(StepPrediction step, double load) {
  // Where others take a share f of the cores, work of 1 - f seconds takes up to one second.
  constexpr double nearly_all = 0.95;
  const double share = std::min(std::max(0.0, load), nearly_all);
  step.error = std::hypot(step.error, step.seconds * share / (1 - share));
  return step;
}

std::string advice_text(const Contender& reference, const std::vector<Contender>& others, double load) {
  if (!reference.step.reason.empty()) return "";
  std::vector<Contender> known;
  for (const Contender& one : others)
    if (one.step.reason.empty() && one.step.seconds > 0 &&
        !(one.name == reference.name && one.ranks == reference.ranks))
      known.push_back(one);
  if (known.empty()) return "";
  std::stable_sort(known.begin(), known.end(), [&](const Contender& a, const Contender& b) {
    return speed_over(a, reference).value > speed_over(b, reference).value;
  });
  const Contender& best = known.front();
  const Estimate gain = speed_over(best, reference);
  std::vector<std::string> rest;
  const bool busy = load >= busy_machine;
  const bool unsure = busy || (gain.error > half * gain.value && gain.value + 3 * gain.error > 1);
  for (size_t i = gain.value > 1 && !unsure ? 1 : 0; i < known.size(); ++i)
    rest.push_back(described(known[i], reference));
  std::string text;
  if (busy) {
    text = str("too uncertain to recommend anything (other work took ", std::lround(100 * load),
               " % of the cores): measure again on an idle machine; as measured now, ");
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
