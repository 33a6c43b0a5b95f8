// Finds this node's number and the address of node 0, for one `convoy run` per node. A pure function of options,
// environment variables and the host's name.
//
// The three options come first; each that is missing comes from a platform: Kubeflow (PET_*), SkyPilot (SKYPILOT_*), an
// Indexed Job of Kubernetes (JOB_COMPLETION_INDEX), or NNODES, NODE_RANK and MASTER_ADDR. Platforms that are set at the
// same time must agree.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "launch/machine/environment.h"

namespace convoy {

constexpr uint16_t default_rendezvous_port = 29500;

struct NodeOptions {
  int nodes = 0;  // 0: not typed
  int node = -1;  // -1: not typed
  std::string rendezvous = {};

  bool any() const { return nodes != 0 || node >= 0 || !rendezvous.empty(); }
};

struct NodeRole {
  int nodes = 1;
  int node = 0;
  std::string host;  // of node 0: a name or an address
  uint16_t port = default_rendezvous_port;
  int ranks = 0;     // of each node; 0: not given
  std::string from;  // "--nodes", or the variable that gives the number of nodes

  static std::string name_of(int node) { return "node " + std::to_string(node); }
};

// Nothing if the job has one node, or if neither options nor a platform name several. `full_name`: this host's name
// with its domain; an Indexed Job finds node 0 by it.
// Throws Error(command_line) for invalid options, Error(config) for variables that are incomplete, invalid or
// contradictory.
std::optional<NodeRole> node_role(const NodeOptions& typed, const Variables& variables, const std::string& full_name);

// This host's name with its domain if it can be resolved.
std::string full_host_name();

}  // namespace convoy
