#include "launch/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <numeric>
#include <set>

#include "core/config/run_config.h"
#include "core/config/scalars.h"
#include "core/version.h"

namespace convoy {
namespace {

std::string now_text() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    return colon + 2 <= line.size() ? line.substr(colon + 2) : "";
  }
  return "";
}

// What each rank took, turned into what they took together: the slowest one each time.
PassTiming pass_timing(const std::vector<const StepSamples*>& ranks) {
  size_t count = ranks.front()->steps.size();
  for (const StepSamples* rank : ranks) count = std::min(count, rank->steps.size());
  std::vector<double> slowest, mean;
  for (size_t number = 0; number < count; ++number) {
    double most = 0, sum = 0;
    for (const StepSamples* rank : ranks) {
      most = std::max(most, rank->steps[number]);
      sum += rank->steps[number];
    }
    slowest.push_back(most);
    mean.push_back(sum / static_cast<double>(ranks.size()));
  }
  PassTiming pass;
  pass.rows = static_cast<double>(ranks.front()->rows);
  pass.step = timing_of(slowest);
  pass.apart = std::max(0.0, pass.step.seconds - timing_of(mean).seconds);
  return pass;
}

// Of that row count, or the nearest that was asked for: a data set may have had fewer rows.
UpdatedShare share_at(const std::vector<int64_t>& rows, const std::vector<UpdatedShare>& shares, int64_t wanted) {
  UpdatedShare found;
  int64_t nearest = -1;
  for (size_t i = 0; i < std::min(rows.size(), shares.size()); ++i) {
    const int64_t distance = std::abs(rows[i] - wanted);
    if (nearest >= 0 && distance >= nearest) continue;
    nearest = distance;
    found = shares[i];
  }
  return found;
}

StepTimings step_timings(const std::vector<const std::vector<StepSamples>*>& ranks, int threads,
                         const std::vector<int64_t>& rows, const std::vector<UpdatedShare>& shares) {
  StepTimings timings;
  timings.ranks = static_cast<int>(ranks.size());
  timings.threads = threads;
  std::vector<double> updates;
  for (size_t point = 0; point < ranks.front()->size(); ++point) {
    std::vector<const StepSamples*> samples;
    for (const std::vector<StepSamples>* rank : ranks) samples.push_back(&rank->at(point));
    const UpdatedShare share = share_at(rows, shares, samples.front()->rows);
    for (const StepSamples* rank : samples)
      for (const double seconds : rank->updates) updates.push_back(seconds / share.three);
    PassTiming pass = pass_timing(samples);
    pass.updated = share.one;
    // Of a small data set, larger batches are all of it.
    const bool known = std::any_of(timings.passes.begin(), timings.passes.end(),
                                   [&](const PassTiming& other) { return other.rows == pass.rows; });
    if (!known) timings.passes.push_back(pass);
  }
  std::sort(timings.passes.begin(), timings.passes.end(),
            [](const PassTiming& a, const PassTiming& b) { return a.rows < b.rows; });
  timings.update = difference_of(updates);
  for (const PassTiming& pass : timings.passes)  // noise must not make a pass take less than nothing
    timings.update.seconds = std::min(timings.update.seconds, 0.95 * pass.step.seconds / pass.updated);
  return timings;
}

// An update of few rows is a small part of a step: as large a part of each as of those of one rank alone, where noise is least.
void share_update(const StepTimings& alone, StepTimings& together) {
  const PassTiming& pass = together.passes.back();
  const auto nearest =
      std::min_element(alone.passes.begin(), alone.passes.end(), [&](const PassTiming& a, const PassTiming& b) {
        return std::abs(a.rows - pass.rows) < std::abs(b.rows - pass.rows);
      });
  const double part = alone.update.seconds * nearest->updated / nearest->step.seconds;
  together.update = {part * pass.step.seconds / pass.updated, alone.update.spread};
}

std::vector<std::pair<std::string, double>> block_shares(const std::vector<std::pair<std::string, double>>& seconds) {
  double all = 0;
  for (const auto& [name, time] : seconds) all += time;
  std::vector<std::pair<std::string, double>> shares;
  for (const auto& [name, time] : seconds)
    if (all > 0) shares.emplace_back(name, time / all);
  return shares;
}

// Scales from the sampled blocks to all: passes by the time of blocks, updates by their parameters.
void extrapolate(Calibration& calibration, const std::vector<SampledBlock>& sampled,
                 const std::vector<std::pair<std::string, double>>& seconds) {
  constexpr double doubt = 0.1;  // relative: blocks may differ in time, and a step does more than its blocks
  double time = 0, all_time = 0, parameters = 0, all_parameters = 0;
  for (size_t i = 0; i < std::min(sampled.size(), seconds.size()); ++i) {
    const auto count = static_cast<double>(sampled[i].names.size());
    time += seconds[i].second;
    all_time += count * seconds[i].second;
    parameters += static_cast<double>(sampled[i].parameters);
    all_parameters += count * static_cast<double>(sampled[i].parameters);
  }
  const double slower = time > 0 ? all_time / time : 1, larger = parameters > 0 ? all_parameters / parameters : 1;
  for (StepTimings& step : calibration.steps) {
    for (PassTiming& pass : step.passes) {
      const double update = step.update.seconds * pass.updated;
      pass.step.seconds = (pass.step.seconds - update) * slower + update * larger;
      pass.step.spread = std::hypot(pass.step.spread, doubt);
      pass.apart *= slower;
    }
    step.update.seconds *= larger;
  }
  calibration.blocks.clear();
  for (size_t i = 0; i < std::min(sampled.size(), seconds.size()) && all_time > 0; ++i)
    for (const std::string& name : sampled[i].names)
      calibration.blocks.emplace_back(name, seconds[i].second / all_time);
}

}  // namespace

Timing timing_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  const size_t kept = count - count / 10;
  Timing timing;
  timing.seconds = std::accumulate(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(kept), 0.0) /
                   static_cast<double>(kept);
  if (timing.seconds > 0) timing.spread = (samples[count - 1 - count / 5] - samples[count / 5]) / 2 / timing.seconds;
  return timing;
}

Timing difference_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  Timing timing;
  timing.seconds = std::max(0.0, (samples[(count - 1) / 2] + samples[count / 2]) / 2);
  if (timing.seconds > 0) timing.spread = (samples[count - 1 - count / 5] - samples[count / 5]) / 2 / timing.seconds;
  return timing;
}

double ExchangeTimings::bandwidth() const {
  const double bytes = messages.back().bytes - (messages.size() > 1 ? messages.front().bytes : 0);
  const double seconds = messages.back().time.seconds - (messages.size() > 1 ? latency() : 0);
  return bytes / std::max(seconds, 1e-9);
}

Json timed_sections(const Json& resolved) {
  Json sections = Json::object();
  for (const char* name : {"precision", "model", "data", "loss", "optimizer"})
    if (resolved.contains(name)) sections[name] = resolved[name];
  const Json recompute = resolved.contains("strategy") ? resolved["strategy"].value("recompute", Json("none")) : "none";
  sections["recompute"] = recompute;
  return sections;
}

Calibration calibration_of(const MeasurementRequest& request, const std::vector<Measurement>& measured,
                           const Host& host, const Json& resolved) {
  const Measurement& first = measured.at(0);
  Calibration calibration;
  calibration.made = now_text();
  calibration.convoy = version;
  calibration.host = host.name;
  calibration.processor = processor_name();
  calibration.cores = static_cast<int>(host.cores.size());
  calibration.memory = host.memory;
  calibration.device = first.device;
  for (const Gpu& gpu : host.gpus) calibration.gpus.push_back(gpu.uuid);
  calibration.run = timed_sections(resolved);
  calibration.blocks = block_shares(first.blocks);
  calibration.steps.push_back(
      step_timings({&first.alone}, request.alone.threads, request.alone_rows, request.alone_updated));
  if (!request.together.empty()) {
    std::vector<const std::vector<StepSamples>*> ranks;
    for (const Measurement& one : measured) ranks.push_back(&one.together);
    calibration.steps.push_back(
        step_timings(ranks, request.together.front().threads, request.together_rows, request.together_updated));
  }
  if (!request.together.empty() && !request.together_updated.empty())
    share_update(calibration.steps.front(), calibration.steps.back());
  if (!request.sampled.empty()) extrapolate(calibration, request.sampled, first.blocks);
  for (const ExchangeSamples& samples : first.exchanges) {
    auto& all = calibration.exchanges;
    auto found = std::find_if(all.begin(), all.end(), [&](const ExchangeTimings& one) {
      return one.backend == samples.backend && one.kind == samples.kind;
    });
    if (found == all.end()) found = all.insert(all.end(), ExchangeTimings{samples.backend, samples.kind, 0, {}});
    found->messages.push_back({static_cast<double>(samples.bytes), timing_of(samples.seconds)});
    found->busy = samples.busy;  // of the largest: what overlap hides matters there
  }
  return calibration;
}

void check_calibration(const Calibration& calibration, const Json& resolved, const std::string& path) {
  // Where the data lies, which rows are drawn and how fast weights move takes no time.
  const std::vector<std::string> free{"data.path",          "data.prefetch",      "data.evaluate",
                                      "data.evaluate_rows", "data.samples",       "data.seed",
                                      "optimizer.lr",       "optimizer.schedule", "optimizer.clip_norm"};
  const std::string key = first_difference(calibration.run, timed_sections(resolved), free);
  if (key.empty()) return;
  throw Error(Failure::config, str(path, ": was measured for another configuration: ", key,
                                   " differs; measure this one with --calibrate"));
}

Link parse_link(const std::string& text) {
  const size_t comma = text.find(',');
  const size_t begin = comma == std::string::npos ? comma : text.find_first_not_of(' ', comma + 1);
  std::string rate = begin == std::string::npos ? "" : text.substr(begin);
  const bool per_second = rate.size() > 2 && rate.compare(rate.size() - 2, 2, "/s") == 0;
  if (per_second) rate.resize(rate.size() - 2);
  const Parsed<double> latency = parse_duration(text.substr(0, comma));
  const Parsed<int64_t> bandwidth = parse_bytes(rate);
  if (!per_second || !latency.value || !bandwidth.value || *latency.value < 0 || *bandwidth.value <= 0)
    throw Error(Failure::command_line, str("--link ", shown(text),
                                           ": must be a latency and a bandwidth in bytes a "
                                           "second, as in --link 20us,12GB/s"));
  return {*latency.value, static_cast<double>(*bandwidth.value)};
}

}  // namespace convoy
