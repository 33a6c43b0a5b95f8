// Topologies of other machines: tests/topologies, written by make.py.
#pragma once
#include <cstdlib>
#include <string>

#include "launch/machine/topology.h"

namespace convoy {

// ctest sets the folder of the sources; by hand the program is started in it.
inline std::string topology_file(const std::string& name) {
  const char* source = std::getenv("CONVOY_SOURCE");
  return std::string(source == nullptr ? "." : source) + "/tests/topologies/" + name + ".xml";
}

inline Topology machine_named(const std::string& name) { return {{saved_host(topology_file(name))}}; }

}  // namespace convoy
