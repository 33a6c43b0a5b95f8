// What `convoy explain --calibrate` has rank processes measure, and what they answer: plain data, as it travels over the
// control channel. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"
#include "strategies/catalogue.h"

namespace convoy {

// A rank to measure as: where it runs.
struct MeasuredRank {
  std::vector<int> cores;  // empty: not bound
  int threads = 1;
  int gpu = -1;           // within the process; -1: the cores
  std::string uuid = "";  // of the GPU that the process is shown; "": all
};
struct WantedExchange {
  std::string backend;
  bool threads = false;  // ranks of this backend are threads of one process
  std::vector<Exchange> kinds;
};
// Of all parameters, what the update of one batch touches, and that of three whose gradients were added up.
struct UpdatedShare {
  double one = 1, three = 1;
};
// A block of the model in place of all equal ones.
struct SampledBlock {
  int64_t index = 0;               // of the model's
  std::vector<std::string> names;  // of all equal ones, itself included
  int64_t parameters = 0;          // elements of one of them
};
struct MeasurementRequest {
  Json config;                         // resolved, of the reference strategy
  MeasuredRank alone;                  // as the reference strategy's rank stands
  std::vector<MeasuredRank> together;  // as ranks of this host stand beside each other; empty: none are to be measured
  std::vector<int64_t> alone_rows, together_rows;             // of a pass; the most important first, then a small one
  std::vector<UpdatedShare> alone_updated, together_updated;  // by those; empty: everything is updated
  std::vector<WantedExchange> exchanges;
  std::vector<int64_t> bytes;         // that a rank sends of one exchange, ascending
  double seconds = 0;                 // for all of it, behind the making of data set and model
  std::string address;                // the interface for data between ranks
  std::vector<SampledBlock> sampled;  // the model is these blocks alone, one after the other; empty: all of its blocks
};
Json to_json(const MeasurementRequest& request);
MeasurementRequest measurement_request(const Json& json);

// Keys of the channel.
namespace measurement_key {
inline constexpr char request[] = "calibrate/request";
inline constexpr char result[] = "calibrate/result/";  // + process
}  // namespace measurement_key

// What one process took, as lists of seconds.
struct StepSamples {
  int64_t rows = 0;
  std::vector<double> steps;    // with an update
  std::vector<double> updates;  // of the update alone: differences of two steps, which noise makes negative too
};
struct ExchangeSamples {
  std::string backend;
  Exchange kind = Exchange::all_reduce;
  int64_t bytes = 0;
  std::vector<double> seconds;
  double busy = 0;
};
struct Measurement {
  std::vector<StepSamples> alone, together;
  std::vector<ExchangeSamples> exchanges;
  std::vector<std::pair<std::string, double>> blocks;  // seconds of their forwards
  std::string device;                                  // "cpu", or the GPU's name
};
Json to_json(const Measurement& measurement);
Measurement measurement_from_json(const Json& json);

Exchange exchange_named(const std::string& name);  // inverse of name_of; Error(config) for another name

}  // namespace convoy
