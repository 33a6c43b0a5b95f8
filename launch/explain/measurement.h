// Request and results of a measurement (`convoy explain --calibrate`), which rank processes execute. Plain data, sent
// as JSON over the control channel. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/json.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// In JSON an exchange has its name.
inline void to_json(Json& json, Exchange kind) { json = name_of(kind); }
inline void from_json(const Json& json, Exchange& kind) { kind = exchange_named(json.get<std::string>()); }

// Cores and device of a measured rank.
struct MeasuredRank {
  std::vector<int> cores;  // empty: not bound
  int threads = 1;
  int gpu = -1;           // within the process; -1: the cores
  std::string uuid = "";  // of the GPU that is visible to the process; "": all
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
  std::vector<std::string> names;  // of all equal blocks, itself included
  int64_t parameters = 0;          // elements of one block
};
CONVOY_JSON(SampledBlock, index, names, parameters)
struct MeasurementRequest {
  Json config;                                                // resolved, of the reference strategy
  MeasuredRank alone;                                         // the reference strategy's rank
  std::vector<MeasuredRank> together;                         // ranks of this host at once; empty: not measured
  std::vector<int64_t> alone_rows, together_rows;             // of a pass; the most frequent first, then a small one
  std::vector<UpdatedShare> alone_updated, together_updated;  // by those rows; empty: all parameters
  std::vector<WantedExchange> exchanges;
  std::vector<int64_t> bytes;         // sent by a rank in one exchange, ascending
  double seconds = 0;                 // of the whole measurement, after data set and model are made
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
  std::vector<double> updates;  // of the update alone: differences of two steps, which may be negative
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
  std::string device;                                  // "cpu", or the GPU's name
};
CONVOY_JSON(Measurement, alone, together, exchanges, blocks, device)

}  // namespace convoy
