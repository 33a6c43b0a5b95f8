// Step times of candidates: where the calibration comes from, and what is advised.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/calibration.h"
#include "launch/candidate.h"

namespace convoy {

struct ForecastRequest {
  bool calibrate = false;   // measure, and write calibration.json into the current folder
  std::string calibration;  // else read this file
  std::optional<Link> link;
  bool here = true;  // candidates are planned for this host
};

// Gives each candidate that is not refused its prediction. Returns lines for people: the calibration, and the advice.
// Throws what measuring, reading or writing the calibration throws.
std::string forecast(const ForecastRequest& request, const PreparedRun& run, const Topology& topology,
                     std::vector<Candidate>& candidates);

}  // namespace convoy
