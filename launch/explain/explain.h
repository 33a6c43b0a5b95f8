// `convoy explain`: predicted step times of candidates, advice, and the texts that it prints.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/explain/calibration.h"
#include "launch/explain/candidate.h"
#include "launch/explain/prediction.h"
#include "launch/prepare/prepare.h"

namespace convoy {

struct PredictionRequest {
  std::string calibration;  // file to read; "": measure
  std::optional<HostLink> link;
  bool here = true;   // the candidates are planned for this host
  bool keep = false;  // write the measurement to calibration.json in the current folder
};

// Sets the prediction of each candidate that is not refused. Returns lines for people: the calibration and the advice.
// Candidates with dense embeddings get a separate measurement if others have sparse ones. Throws errors of measuring,
// reading and writing; Error(out_of_memory) if this host has too little memory to measure.
std::string predict_candidates(const PredictionRequest& request, const PreparedRun& run, const Topology& topology,
                               std::vector<Candidate>& candidates);

// --- Advice from predictions: which candidate trains fastest and why the others do not ---

struct PredictedCandidate {
  std::string name;  // Candidate::title
  int ranks = 1;
  double rows = 0;  // a step, of all ranks together
  StepPrediction step;
  // The candidate with less frequent synchronisation; empty if it has no such option or gains nothing.
  struct LowerFrequency {
    int every = 0;  // steps
    double rows = 0;
    StepPrediction step;
  };
  std::optional<LowerFrequency> lower_frequency = std::nullopt;
};

// Rows a second ÷ those of `reference`.
Estimate speed_over(const PredictedCandidate& candidate, const PredictedCandidate& reference);
// "0.4×", "12×".
std::string speed_text(double speed);

// Widens the error by the effect of other load on the measured cores. `load`: its share of the cores.
StepPrediction widened(StepPrediction step, double load);

// One sentence: the best candidate, and why the others are no better. `reference`: the single rank with which all are
// compared. `others` may contain it and candidates without prediction. Recommends nothing on a busy machine (`load`),
// and no candidate with an error above 100 %.
std::string advice_text(const PredictedCandidate& reference, const std::vector<PredictedCandidate>& others,
                        double load = 0);

// --- Output. Pure functions of candidates ---

// Hosts, mesh, placement, communication, memory and schedule of one candidate. `source`: the origin of the topology.
std::string explained(const Candidate& candidate, const Topology& topology, const std::string& source);

// Table with one column per candidate, followed by the reasons of those that are refused or do not fit into memory.
std::string compared(const std::vector<Candidate>& candidates, const Topology& topology);

// --- Measurement of what predictions need, in rank processes on this host, within a few seconds (`--calibrate`) ---
//
// Starts as many `convoy-rank --calibrate` as a candidate has ranks on this host and serves their control channel.
// Measures the reference strategy's step, and exchanges without a model; runs no candidate. Leaves no files.

// Row counts of passes, and kinds and sizes of exchanges, that `candidates` and `reference` need. The caller sets the
// time limit. `measured`: the reference with the configuration to measure. `here`: the candidates are planned for this
// host, so ranks are measured on their cores; otherwise the cores are divided equally.
MeasurementRequest measurement_for(const Candidate& measured, const Candidate& reference,
                                   const std::vector<const Candidate*>& candidates, const Host& host, bool here);

// Starts the processes and waits for their results. Throws the first failure; Error(hang) after a minute;
// Error(stopped) after a signal. Must be called from the main thread before it starts another thread.
std::vector<Measurement> measure(const MeasurementRequest& request, const std::string& rank_program,
                                 const Variables& variables);

// --- Other load on the measured cores, which would make measured times wrong ---

// Seconds of CPU time since the machine started, on some of its hardware threads.
struct CpuTimes {
  double busy = 0;    // time of all processes of this machine
  double stolen = 0;  // time taken by other virtual machines
};
// `stat`: text of /proc/stat. Nothing if it lacks one of the hardware threads.
std::optional<CpuTimes> cpu_times(const std::string& stat, const std::vector<int>& threads);

// Share of the hardware threads' time that other processes used, 0 to 1. `own`: CPU seconds of this process and its
// children in the same period.
double other_load(const CpuTimes& before, const CpuTimes& after, double own, double seconds, size_t threads);

// Measures from construction on. Threads: one. Reports nothing if /proc/stat cannot be read.
class LoadWatch {
 public:
  explicit LoadWatch(std::vector<int> threads);
  std::optional<double> share() const;  // other load until now; children count after they have been waited for

 private:
  std::vector<int> threads_;
  std::optional<CpuTimes> before_;
  double own_ = 0, start_ = 0;
};

// Other load on these hardware threads during a short sleep of this process.
std::optional<double> load_now(const std::vector<int>& threads);

constexpr double busy_machine = 0.2;  // share of the cores above which measured times justify no advice

}  // namespace convoy
