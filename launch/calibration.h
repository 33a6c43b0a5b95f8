// What was measured once of one configuration on one machine, from which steps under any strategy are predicted: the
// reference strategy's step, and what backends take between two ranks. Pure data and its file, calibration.json, which
// docs/explain.md describes.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/options.h"
#include "core/topology.h"
#include "launch/measurement.h"

namespace convoy {

// Of a list of seconds.
struct Timing {
  double seconds = 0;  // mean without the slowest tenth
  double spread = 0;   // half of what lies between the fifth and the last but fifth, ÷ seconds
};
Timing timing_of(std::vector<double> samples);
// The same of differences, which scatter to both sides: their median, 0 at least.
Timing difference_of(std::vector<double> samples);

struct PassTiming {
  double rows = 0;
  Timing step;         // of the rank that is slowest each time: forward, backward and update
  double apart = 0;    // what the mean rank takes less than the slowest one, seconds
  double updated = 1;  // share of all parameters that its update touches
};
// The reference strategy's step by `ranks` that each do the same at once, with `threads` threads.
struct StepTimings {
  int ranks = 1;
  int threads = 1;
  Timing update;                   // of all parameters, of which each of those steps' touches a share
  std::vector<PassTiming> passes;  // by rows, ascending; at least one
};
struct MessageTiming {
  double bytes = 0;  // that a rank sends
  Timing time;
};
struct ExchangeTimings {
  std::string backend;
  Exchange kind = Exchange::all_reduce;
  double busy = 0;                      // processor time of a rank ÷ time
  std::vector<MessageTiming> messages;  // between two ranks, by bytes, ascending; at least one
  double latency() const { return messages.front().time.seconds; }
  double bandwidth() const;  // bytes a second, of the largest beside the smallest
};

struct Calibration {
  std::string made;       // "2026-11-21T20:15:00Z"
  std::string convoy;     // version
  std::string host;       // name
  std::string processor;  // as the system calls it
  int cores = 0;          // physical ones that this run could use
  int64_t memory = 0;     // bytes, likewise
  std::string device;     // "cpu" or "cuda"
  std::vector<std::string> gpus;
  double load = 0;  // share of the cores that other work took before or while it was measured, whichever was more
  Json run;         // sections of the configuration that times depend on
  std::vector<std::pair<std::string, double>> blocks;  // share of a forward's time; empty where it was not measured
  std::vector<StepTimings> steps;                      // at least one: ranks 1
  std::vector<ExchangeTimings> exchanges;
  std::shared_ptr<const Calibration>
      dense_tables;  // the same with dense tables in place of row tables; null: was not measured
};

// Sections of a resolved configuration that times depend on: model, data, loss, optimizer, precision, recomputation.
Json timed_sections(const Json& resolved);

Calibration calibration_of(const MeasurementRequest& request, const std::vector<Measurement>& measured,
                           const Host& host, const Json& resolved);

// calibration.json: version 1. Whole or not at all; Error(output) where it cannot be written.
void write_calibration(const std::string& path, const Calibration& calibration);
// Error(config) naming the file and what is wrong: not there, no JSON, another version, a key that is missing, of another
// type or out of range.
Calibration read_calibration(const std::string& path);
Json to_json(const Calibration& calibration);
Calibration calibration_from_json(const Json& json, const std::string& path);

// Throws Error(config) for a calibration of another model, data set, optimizer or precision, naming the key and `path`.
void check_calibration(const Calibration& calibration, const Json& resolved, const std::string& path);

// What a link between hosts takes: "20us,12GB/s". Error(command_line) for any other text.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes a second
};
Link parse_link(const std::string& text);

}  // namespace convoy
