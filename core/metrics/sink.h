// Sinks: where figures go. The trainer of rank 0 reads metrics to the host at its interval and hands records to each.
// Threads: one thread. Failure: Error(io) when a file cannot be written, naming it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/control/channel.h"
#include "core/options.h"

namespace convoy {

struct Record {
  std::string kind;    // "train", "evaluate", "checkpoint"
  int64_t step = 0;    // steps done
  int64_t epoch = 0;   // epochs begun, from 1
  double seconds = 0;  // since the start of training
  double samples_per_second = 0;
  double remaining_seconds = -1;          // -1: unknown
  double learning_rate = -1;              // of the last update; -1: none yet
  double gradient_norm = -1;              // of the last update, before clipping; -1: none, or each member's own
  std::map<std::string, double> metrics;  // NaN and infinities allowed
  std::map<std::string, std::vector<double>> members =
      {};  // of an ensemble, each one's own; only where there are several
};
Json to_json(const Record& record);  // non-finite values as strings "nan", "inf"

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const Record& record) = 0;
};

// Appends, and flushes each line. Records of steps after `last_step`, left by an earlier attempt, are dropped first.
std::unique_ptr<Sink> make_jsonl_sink(const std::string& path, int64_t last_step);
std::unique_ptr<Sink> make_channel_sink(
    std::shared_ptr<Channel> channel);  // all but "train" records, to `convoy`, which shows them

}  // namespace convoy
