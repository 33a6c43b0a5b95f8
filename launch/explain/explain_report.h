// Output of `convoy explain`. Pure functions of candidates.
#pragma once
#include <string>
#include <vector>

#include "launch/explain/candidate.h"

namespace convoy {

// Hosts, mesh, placement, communication, memory and schedule of one candidate. `source`: the origin of the topology.
std::string explained(const Candidate& candidate, const Topology& topology, const std::string& source);

// Table with one column per candidate, followed by the reasons of those that are refused or do not fit into memory.
std::string compared(const std::vector<Candidate>& candidates, const Topology& topology);

}  // namespace convoy
