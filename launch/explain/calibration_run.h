// Measures what predictions need, in rank processes on this host, within a few seconds (`--calibrate`).
//
// Starts as many `convoy-rank --calibrate` as a candidate has ranks on this host and serves their control channel.
// Measures the reference strategy's step, and exchanges without a model; runs no candidate. Leaves no files.
#pragma once
#include <vector>

#include "launch/explain/calibration.h"
#include "launch/explain/candidate.h"

namespace convoy {

// Row counts of passes, and kinds and sizes of exchanges, that `candidates` and `reference` need. The caller sets the
// time limit. `measured`: the reference with the configuration to measure. `here`: the candidates are planned for this
// host, so ranks are measured on their cores; otherwise the cores are divided equally.
MeasurementRequest measurement_for(const Candidate& measured, const Candidate& reference,
                                   const std::vector<const Candidate*>& candidates, const Host& host, bool here);

// Starts the processes and waits for their results. Throws the first failure; Error(hang) after a minute;
// Error(stopped) after a signal. Must be called from the main thread before it starts another thread.
std::vector<Measurement> measure(const MeasurementRequest& request, const std::string& rank_program,
                                 const Variables& variables);

}  // namespace convoy
