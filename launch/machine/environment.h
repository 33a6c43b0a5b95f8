// Finds the launcher that started this `convoy`, and its rank there. A pure function of environment variables.
//
// One source gives rank, local rank and size: CONVOY_* first, then torchrun's variables, Open MPI, a Slurm step.
// An incomplete set, or a contradiction between two sets that must agree, is an Error(config) that names the variables.
// Variables that were only inherited (from a batch script, an allocation or an outer rank) are reported and ignored.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

using Variables = std::map<std::string, std::string>;

enum class Launcher {
  none,      // started alone
  convoy,    // CONVOY_RANK, CONVOY_WORLD_SIZE, CONVOY_LOCAL_RANK: for other launchers
  torchrun,  // RANK, WORLD_SIZE, LOCAL_RANK
  open_mpi,  // OMPI_COMM_WORLD_*
  slurm      // a task of a Slurm step
};
const char* name_of(Launcher launcher);
// True if the launcher's daemon stays the parent of its ranks. Other launchers may start ranks from a shell that ends.
inline bool stays_as_parent(Launcher launcher) { return launcher == Launcher::open_mpi || launcher == Launcher::slurm; }

struct LaunchedAs {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int local_rank = 0;  // among the ranks of this host
  int size = 1;
  int local_size = 0;                  // 0: unknown
  std::string job;                     // equal on all ranks of one launch and different for others; safe in a file name
  bool pmi = false;                    // MPI_Init would find its peers, so that backend mpi is possible
  std::string channel;                 // CONVOY_CHANNEL: this process is an agent of a supervisor outside the launcher
  std::string size_from;               // the variable that gave the size, for messages
  std::vector<std::string> inherited;  // lines for the log: ignored variables, with the reason
};

LaunchedAs launched_as(const Variables& variables);

Variables current_variables();

// Variables without those that a launcher sets for its ranks, so that a separate run can start. Keeps the user's
// settings (OMPI_MCA_*, OMPI_ALLOW_*) and a Slurm allocation, which mpirun needs.
Variables without_ranks(const Variables& variables);

// --- One `convoy run` per node: this node's number and the address of node 0 ---
//
// The three options come first; each that is missing comes from a platform: Kubeflow (PET_*), SkyPilot (SKYPILOT_*), an
// Indexed Job of Kubernetes (JOB_COMPLETION_INDEX), or NNODES, NODE_RANK and MASTER_ADDR. Platforms that are set at the
// same time must agree.

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
  std::string host;  // name or address of node 0
  uint16_t port = default_rendezvous_port;
  int ranks = 0;     // ranks on each node; 0: not given
  std::string from;  // "--nodes", or the variable that gives the number of nodes

  static std::string name_of(int node) { return "node " + std::to_string(node); }
};

// Nothing if the job has one node without a number of ranks, or if neither options nor a platform name several.
// `full_name`: gives this host's name with its domain, by which an Indexed Job finds node 0. Called for an Indexed Job
// only, since it may ask the network.
// Throws Error(command_line) for invalid options, Error(config) for variables that are incomplete, invalid or
// contradictory.
std::optional<NodeRole> node_role(const NodeOptions& typed, const Variables& variables,
                                  const std::function<std::string()>& full_name);

// This host's name with its domain if it can be resolved.
std::string full_host_name();

}  // namespace convoy
