// Predicts step times of candidates from a calibration that it reads or measures, and adds advice.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/explain/calibration.h"
#include "launch/explain/candidate.h"

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

}  // namespace convoy
