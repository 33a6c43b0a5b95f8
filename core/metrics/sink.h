// Sinks: destinations of metrics. The trainer of rank 0 reads metrics to the host at its interval and writes records to
// each sink. Threads: one thread. Failure: Error(io) names the file that cannot be written.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/control/channel.h"

namespace convoy {

struct Record {
  std::string kind;    // "train", "evaluate", "checkpoint"
  int64_t step = 0;    // steps done
  int64_t epoch = 0;   // epochs begun, from 1
  double seconds = 0;  // since the start of training
  double samples_per_second = 0;
  double remaining_seconds = -1;          // -1: unknown
  double learning_rate = -1;              // rate of the last update; -1: none yet
  double gradient_norm = -1;              // norm before clipping, of the last update; -1: none, or one per member
  std::map<std::string, double> metrics;  // NaN and infinities allowed
  std::map<std::string, std::vector<double>> members =
      {};                                         // metrics of an ensemble: values by member; only if there are several
  std::vector<std::string> lower_is_better = {};  // "evaluate": names of these metrics
};
Json to_json(const Record& record);
Record record_of(const Json& json);  // the record that became `json` in this process or in another rank

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const Record& record) = 0;
};

// Appends and flushes each line. First drops records of steps after `last_step`, from an earlier attempt, and without
// `evaluated` also that step's evaluation.
std::unique_ptr<Sink> make_jsonl_sink(const std::string& path, int64_t last_step, bool evaluated = true);
size_t evaluations_in(const std::string& path, int64_t step);  // after `step` steps, in a file of make_jsonl_sink
std::unique_ptr<Sink> make_channel_sink(
    std::shared_ptr<Channel> channel);  // sends all records except "train" to `convoy`, which prints them

}  // namespace convoy
