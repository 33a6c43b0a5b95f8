// `--calibrate`: has rank processes of this host measure what predictions need, within a few seconds.
//
// Starts as many `convoy-rank --calibrate` as ranks would stand on this host, serves them a channel, and leaves nothing
// behind. Never runs a candidate: only the reference strategy's step, and exchanges without a model.
#pragma once
#include <vector>

#include "launch/calibration.h"
#include "launch/candidate.h"

namespace convoy {

// What to measure for `candidates` and `reference`, that of the reference strategy: row counts of their passes, kinds and
// sizes of exchanges; in how many seconds is left to the caller. `measured` is the reference as it is to be measured. `here`:
// they are planned for this host, whose cores then are the ranks' own; else cores are divided alike.
MeasurementRequest measurement_for(const Candidate& measured, const Candidate& reference,
                                   const std::vector<const Candidate*>& candidates, const Host& host, bool here);

// Starts the processes and waits for their figures. Throws what failed first; Error(hang) after a minute, Error(stopped)
// when asked to end. From the main thread, before it has started any other.
std::vector<Measurement> measure(const MeasurementRequest& request, const std::string& rank_program,
                                 const Variables& variables);

}  // namespace convoy
