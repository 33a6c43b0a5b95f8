// Step times of candidates: where the calibration comes from, and what is advised.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/calibration.h"
#include "launch/candidate.h"

namespace convoy {

struct ForecastRequest {
  std::string calibration;  // read this file; "": measure
  std::optional<Link> link;
  bool here = true;   // candidates are planned for this host
  bool keep = false;  // what was measured, in calibration.json in the current folder
};

// Gives each candidate that is not refused its prediction. Returns lines for people: the calibration, and the advice.
// Candidates with dense tables beside such with row tables are measured for themselves. Throws what measuring, reading or writing
// the calibration throws; Error(out_of_memory) where this host has not the room to measure.
std::string forecast(const ForecastRequest& request, const PreparedRun& run, const Topology& topology,
                     std::vector<Candidate>& candidates);

}  // namespace convoy
