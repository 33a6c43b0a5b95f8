// Calibration: step times of the reference strategy on one machine, and times of its backends between two ranks.
// Predictions for all strategies follow from it. Plain data and its file, calibration.json (docs/explain.md).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/config/job_plan.h"
#include "launch/explain/measurement.h"

namespace convoy {

struct Timing {
  double seconds = 0;  // mean without the slowest tenth
  double spread = 0;   // half of the range of the middle three fifths, ÷ seconds
};
Timing timing_of(std::vector<double> samples);
// For differences, which may be negative: `seconds` is the median, and at least 0.
Timing difference_of(std::vector<double> samples);

struct PassTiming {
  double rows = 0;
  Timing step;           // of the slowest rank: forward, backward and update
  double mean_wait = 0;  // seconds for which a rank waits for the slowest one, mean over ranks
  double updated = 1;    // share of all parameters that the update touches
};
// Steps of the reference strategy in `ranks` processes at once, with `threads` threads each.
struct StepTimings {
  int ranks = 1;
  int threads = 1;
  Timing update;                   // of all parameters; a step updates the share PassTiming::updated
  std::vector<PassTiming> passes;  // by rows, ascending; at least one
};
struct MessageTiming {
  double bytes = 0;  // sent by a rank
  Timing time;
};
struct ExchangeTimings {
  std::string backend;
  Exchange kind = Exchange::all_reduce;
  double busy = 0;                      // processor time of a rank ÷ time
  std::vector<MessageTiming> messages;  // between two ranks, by bytes, ascending; at least one
  double latency() const { return messages.front().time.seconds; }
  double bandwidth() const;  // bytes a second, from the smallest and the largest message
};

struct Calibration {
  std::string made;       // "2026-11-21T20:15:00Z"
  std::string convoy;     // version
  std::string host;       // name
  std::string processor;  // name from /proc/cpuinfo
  int cores = 0;          // usable physical cores
  int64_t memory = 0;     // usable bytes
  std::string device;     // "cpu" or "cuda"
  std::vector<std::string> gpus;
  double load = 0;  // share of the cores that other processes used before or during the measurement, the larger one
  Json run;         // timed_sections
  std::vector<std::pair<std::string, double>> blocks;  // share of a forward's time; empty: not measured
  std::vector<StepTimings> steps;                      // at least one, with ranks 1
  std::vector<ExchangeTimings> exchanges;
  std::shared_ptr<const Calibration> dense_embeddings;  // the same run with dense embeddings; null: not measured
};

// Sections of a resolved configuration that affect times: model, data, loss, optimizer, precision, recompute.
Json timed_sections(const Json& resolved);

Calibration calibration_of(const MeasurementRequest& request, const std::vector<Measurement>& measured,
                           const Host& host, const Json& resolved);

// Writes calibration.json, version 1, atomically. Throws Error(output) if it cannot be written.
void write_calibration(const std::string& path, const Calibration& calibration);
// Throws Error(config) with the file and the reason: a missing file, no JSON, another version, or a key that is
// missing, has another type or is out of range.
Calibration read_calibration(const std::string& path);
Json to_json(const Calibration& calibration);
Calibration calibration_from_json(const Json& json, const std::string& path);

// Throws Error(config) with the key and `path` if the calibration has other timed sections than `resolved`.
void check_calibration(const Calibration& calibration, const Json& resolved, const std::string& path);

// Link between two hosts.
struct HostLink {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes a second
};
// Parses "20us,12GB/s"; throws Error(command_line) for any other text.
HostLink parse_link(const std::string& text);

}  // namespace convoy
