// The breakdown of summary.json: adds up, formats and judges the times of ranks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/rank_state/summary.h"

namespace convoy {
namespace {

const char* const parts[] = {"start_up", "data",   "forward",    "backward",   "communication",
                             "waiting",  "update", "evaluation", "checkpoint", "other"};

double sum_of(const Json& rank) {
  double sum = 0;
  for (const char* part : parts) sum += number_in(rank, part, 0);
  return sum;
}

std::string percent(double part, double whole) {
  return str(static_cast<int64_t>(std::lround(100 * part / whole)), " %");
}

double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace

Json take_breakdown(std::map<int, Json>& ranks, double wall, double after) {
  Json list = Json::array();
  for (auto& [rank, values] : ranks) {
    const auto times = values.find("times");
    if (times == values.end()) continue;
    Json entry = {{"rank", rank}};
    for (const char* part : parts) entry[part] = number_in(*times, part, 0);
    entry["waits_for"] = values.value("waits_for", Json::array());
    list.push_back(entry);
    values.erase("times");
    values.erase("waits_for");
  }
  if (list.empty()) return {};
  if (wall <= 0)
    for (const Json& entry : list) wall = std::max(wall, sum_of(entry) + after);
  for (Json& entry : list) {
    const double before = wall - after - sum_of(entry);
    entry["start_up"] = number_in(entry, "start_up", 0) + std::max(before, 0.0);
    entry["other"] = number_in(entry, "other", 0) + after;
    for (const char* part : parts) entry[part] = rounded(number_in(entry, part, 0));
  }
  return {{"wall_s", rounded(wall)}, {"ranks", list}};
}

// --- Advice ---

namespace {

constexpr double least_gain = 0.1;  // share of the wall time

struct Advice {
  double gain = 0;  // seconds
  std::string text;
};

std::string milliseconds(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, seconds < 0.00995 ? "%.2g ms" : "%.0f ms", 1000 * seconds);
  return text;
}

// The times of a run, from which advice follows.
class RunTimes {
 public:
  explicit RunTimes(const Json& summary)
      : summary_(summary),
        config_(summary.value("config", Json::object())),
        ranks_(summary.at("breakdown").at("ranks")),
        wall_(number_in(summary.at("breakdown"), "wall_s", 0)),
        steps_(number_in(summary, "steps_here", 0)) {}

  std::string best() const {
    if (steps_ < 1 || wall_ <= 0) return "";
    Advice best;
    for (const Advice& one : {wait(), data(), communication(), interval("evaluation", "evaluates", "evaluate_every"),
                              interval("checkpoint", "saves checkpoints", "checkpoint_every")})
      if (!one.text.empty() && one.gain > best.gain) best = one;
    return best.gain >= least_gain * wall_ ? best.text : "";
  }

 private:
  const Json& slowest(const char* part) const {
    return *std::max_element(ranks_.begin(), ranks_.end(), [part](const Json& a, const Json& b) {
      return number_in(a, part, 0) < number_in(b, part, 0);
    });
  }
  const Json* find(const Json& list, int rank) const {
    for (const Json& one : list)
      if (one.is_object() && number_in(one, "rank", -1) == rank) return &one;
    return nullptr;
  }
  static double compute_of(const Json& rank) {
    return number_in(rank, "forward", 0) + number_in(rank, "backward", 0) + number_in(rank, "update", 0);
  }
  static int number_of(const Json& rank) { return static_cast<int>(whole_in(rank, "rank", 0)); }
  std::string share(const Json& rank, double seconds) const {
    return str(percent(seconds, wall_), " of rank ", number_of(rank), "'s time");
  }
  Json option(const std::string& key) const { return value_of_key(config_, key); }
  size_t cores_of(int rank) const {
    const auto ranks = summary_.find("ranks");
    const Json* const one = ranks == summary_.end() ? nullptr : find(*ranks, rank);
    return one == nullptr ? 0 : one->value("cores", Json::array()).size();
  }

  // A setting that loads data faster; "" if none is left.
  std::string faster_data() const {
    if (const Json decoders = option("data.decoders"); decoders.is_number())
      return str("try data.decoders=", 2 * decoders.get<int64_t>());
    if (const Json prefetch = option("data.prefetch"); prefetch.is_number() && prefetch.get<int64_t>() == 0)
      return "try data.prefetch=4";
    return "";
  }

  Advice wait() const {
    const Json& waits = slowest("waiting");
    const Json& list = waits.at("waits_for");
    if (list.empty()) return {};
    const double seconds = number_in(list.front(), "seconds", 0);
    const Json* const last = find(ranks_, static_cast<int>(whole_in(list.front(), "rank", -1)));
    if (last == nullptr) return {};
    const std::string begin = str(share(waits, seconds), " waits for rank ", number_of(*last));
    const double data = number_in(*last, "data", 0), more_data = data - number_in(waits, "data", 0);
    const double compute = compute_of(*last), more_compute = compute - compute_of(waits);
    // A cause is named only if it explains at least half of the wait.
    if (more_data >= seconds / 2 && more_data >= more_compute) {
      const std::string remedy = faster_data();
      return {std::min(more_data, seconds), str(begin, ", whose data loading takes ", milliseconds(data / steps_),
                                                " per step", remedy.empty() ? "" : "; ", remedy)};
    }
    if (more_compute < seconds / 2) return pipeline(waits);
    const std::string slow =
        str(begin, ", whose forward, backward and update take ", milliseconds(compute / steps_), " per step, ",
            milliseconds(more_compute / steps_), " more than those of rank ", number_of(waits));
    const size_t cores = cores_of(number_of(*last)), usual = cores_of(number_of(waits));
    if (cores < usual)
      return {std::min(more_compute, seconds), str(slow, "; rank ", number_of(*last), " has ", cores, " of ", usual,
                                                   " cores: give every rank as many by launch.cores_per_rank")};
    if (!option("strategy.schedule").is_null())
      return {std::min(more_compute, seconds), str(slow, "; move blocks to other stages by strategy.stages")};
    return {std::min(more_compute, seconds), str(slow, "; look for other programs on its cores")};
  }

  // Every stage waits while the pipeline fills and drains: more micro-batches shorten that.
  Advice pipeline(const Json& waits) const {
    const Json micro_batches = option("strategy.micro_batches");
    if (option("strategy.schedule").is_null() || !micro_batches.is_number()) return {};
    for (const Json& rank : ranks_)
      if (number_in(rank, "waiting", 0) < least_gain * wall_) return {};
    const double seconds = number_in(waits, "waiting", 0);
    return {seconds / 2, str(share(waits, seconds),
                             " waits for other stages; try strategy.micro_batches=", 2 * micro_batches.get<int64_t>())};
  }

  // Advice on the time that all ranks wait for data. wait() has the additional time of a single slow rank.
  Advice data() const {
    const Json& rank = slowest("data");
    const double seconds = number_in(rank, "data", 0);
    const std::string remedy = faster_data();
    if (remedy.empty()) return {};
    double all = seconds;
    for (const Json& one : ranks_) all = std::min(all, number_in(one, "data", 0));
    return {all, str(share(rank, seconds), " waits for data, ", milliseconds(seconds / steps_), " per step; ", remedy)};
  }

  Advice communication() const {
    const Json& rank = slowest("communication");
    const double seconds = number_in(rank, "communication", 0);
    const bool sums = !option("strategy.sync").is_null();
    return {seconds / 2, str(share(rank, seconds), " is communication that nothing overlaps, ",
                             milliseconds(seconds / steps_), " per step; try a batch twice as large",
                             sums ? ", or strategy.sync.every=2 for half as many updates" : "")};
  }

  Advice interval(const char* part, const char* does, const char* key) const {
    const Json& rank = slowest(part);
    const double seconds = number_in(rank, part, 0);
    const Json every = option(str("train.", key));
    if (!every.is_object() || every.value("unit", "") == "never") return {};
    // A longer interval does not avoid the evaluation or checkpoint at the end of the run.
    const double times =
        std::max(1.0, std::floor(every.value("unit", "") == "steps"
                                     ? steps_ / number_in(every, "every", 1)
                                     : number_in(summary_, "epochs", 1) / number_in(every, "every", 1)));
    const auto twice = 2 * whole_in(every, "every", 1);
    return {seconds * std::floor(times / 2) / times,
            str(share(rank, seconds), " ", does, "; try train.", key, "='", twice, " ",
                every.value("unit", "") == "steps" ? "steps" : "epochs", "'")};
  }

  const Json& summary_;
  const Json config_;
  const Json& ranks_;
  const double wall_, steps_;
};

}  // namespace

std::string time_advice(const Json& summary) {
  const auto breakdown = summary.find("breakdown");
  return breakdown == summary.end() || !breakdown->is_object() ? "" : RunTimes(summary).best();
}

std::string time_text(const Json& times, int rank, double wall) {
  std::vector<std::pair<double, std::string>> shares;
  for (const char* part : parts) {
    std::string name = part;
    if (name == "start_up") name = "start-up";
    shares.emplace_back(number_in(times, part, 0), name);
  }
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  for (const auto& [seconds, name] : shares)
    if (seconds >= 0.01 * wall && wall > 0) texts.push_back(str(name, " ", percent(seconds, wall)));
  return str("rank ", rank, ": ", join(texts, ", "));
}

std::string breakdown_line(const Json& summary) {
  const auto breakdown = summary.find("breakdown");
  if (breakdown == summary.end() || !breakdown->is_object()) return "";
  const Json ranks = breakdown->value("ranks", Json::array());
  if (!ranks.is_array() || ranks.empty()) return "";
  const std::string advice = text_in(*breakdown, "advice");
  return str("time of ",
             time_text(ranks.front(), static_cast<int>(whole_in(ranks.front(), "rank", 0)),
                       number_in(*breakdown, "wall_s", 0)),
             advice.empty() ? "" : "; ", advice);
}

}  // namespace convoy
