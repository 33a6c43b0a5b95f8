// What `convoy explain` prints, as text. Pure functions of candidates.
#pragma once
#include <string>
#include <vector>

#include "launch/candidate.h"

namespace convoy {

// Hosts, mesh, placement, what is sent, memory and schedule of one candidate. `source`: where the hosts were read.
std::string explained(const Candidate& candidate, const Topology& topology, const std::string& source);

// Several side by side, a column each; below the reasons of those that cannot be run.
std::string compared(const std::vector<Candidate>& candidates);

}  // namespace convoy
