// Calibration: step times of the reference strategy on one machine, and times of its backends between two ranks.
// Predictions for all strategies follow from it. Plain data and its file, calibration.json (docs/explain.md).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/config/job_plan.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// --- Request and results of a measurement (`convoy explain --calibrate`), which rank processes execute ---
//
// Plain data, sent as JSON over the control channel.

// JSON stores an Exchange by its name.
inline void to_json(Json& json, Exchange kind) { json = name_of(kind); }
inline void from_json(const Json& json, Exchange& kind) { kind = exchange_named(json.get<std::string>()); }

// Cores and device of a measured rank.
struct MeasuredRank {
  std::vector<int> cores;  // empty: not bound
  int threads = 1;
  int gpu = -1;           // within the process; -1: the cores
  std::string uuid = "";  // UUID of the GPU that is visible to the process; "": all
};
CONVOY_JSON(MeasuredRank, cores, threads, gpu, uuid)
struct WantedExchange {
  std::string backend;
  bool threads = false;  // ranks of this backend are threads of one process
  std::vector<Exchange> kinds;
};
CONVOY_JSON(WantedExchange, backend, threads, kinds)
// Share of all parameters that the update of one batch touches, and of three batches with summed gradients.
struct UpdatedShare {
  double one = 1, three = 1;
};
CONVOY_JSON(UpdatedShare, one, three)
// A block of the model that represents all equal blocks.
struct SampledBlock {
  int64_t index = 0;               // in the model
  std::vector<std::string> names;  // names of all equal blocks, itself included
  int64_t parameters = 0;          // elements of one block
};
CONVOY_JSON(SampledBlock, index, names, parameters)
struct MeasurementRequest {
  Json config;                                     // resolved, of the reference strategy
  MeasuredRank alone;                              // the reference strategy's rank
  std::vector<MeasuredRank> together;              // ranks of this host at once; empty: not measured
  std::vector<int64_t> alone_rows, together_rows;  // rows of a pass; the most frequent first, then a small one
  // One per entry of alone_rows, together_rows; empty: an update touches all parameters.
  std::vector<UpdatedShare> alone_updated, together_updated;
  std::vector<WantedExchange> exchanges;
  std::vector<int64_t> bytes;         // sent by a rank in one exchange, ascending
  double seconds = 0;                 // time for the whole measurement, after data set and model are made
  std::string address;                // the interface for data between ranks
  std::vector<SampledBlock> sampled;  // the model is reduced to these blocks; empty: all blocks
};
CONVOY_JSON(MeasurementRequest, config, alone, together, alone_rows, together_rows, alone_updated, together_updated,
            exchanges, bytes, seconds, address, sampled)

// Keys of the control store.
namespace measurement_key {
inline constexpr char request[] = "calibrate/request";
inline constexpr char result[] = "calibrate/result/";  // + process
}  // namespace measurement_key

// Seconds measured by one process.
struct StepSamples {
  int64_t rows = 0;
  std::vector<double> steps;    // with an update
  std::vector<double> updates;  // the update alone: differences of two steps, which may be negative
};
CONVOY_JSON(StepSamples, rows, steps, updates)
struct ExchangeSamples {
  std::string backend;
  Exchange kind = Exchange::all_reduce;
  int64_t bytes = 0;
  std::vector<double> seconds;
  double busy = 0;
};
CONVOY_JSON(ExchangeSamples, backend, kind, bytes, seconds, busy)
struct Measurement {
  std::vector<StepSamples> alone, together;
  std::vector<ExchangeSamples> exchanges;
  std::vector<std::pair<std::string, double>> blocks;  // seconds of their forwards
  std::string device;                                  // "cpu" or "cuda"
};
CONVOY_JSON(Measurement, alone, together, exchanges, blocks, device)

struct Timing {
  double seconds = 0;  // mean without the slowest tenth
  double spread = 0;   // half of the range of the middle three fifths, ÷ seconds
};
Timing timing_of(std::vector<double> samples);
// For differences, which may be negative: `seconds` is the median, and at least 0.
Timing difference_of(std::vector<double> samples);

struct PassTiming {
  double rows = 0;
  Timing step;           // forward, backward and update of the slowest rank
  double mean_wait = 0;  // seconds for which a rank waits for the slowest one, mean over ranks
  double updated = 1;    // share of all parameters that the update touches
};
// Steps of the reference strategy in `ranks` processes at once, with `threads` threads each.
struct StepTimings {
  int ranks = 1;
  int threads = 1;
  Timing update;                   // update of all parameters; a step updates the share PassTiming::updated
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
