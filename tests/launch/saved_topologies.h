// Machines that are not here: tests/topologies, as their make.py wrote them.
#pragma once
#include <cstdlib>
#include <string>

#include "launch/topology.h"

namespace convoy {

// ctest tells where the sources are; by hand the program is started among them.
inline std::string topology_file(const std::string& name) {
  const char* source = std::getenv("CONVOY_SOURCE");
  return std::string(source == nullptr ? "." : source) + "/tests/topologies/" + name + ".xml";
}

inline Topology machine_named(const std::string& name) { return {{saved_host(topology_file(name))}}; }

}  // namespace convoy
