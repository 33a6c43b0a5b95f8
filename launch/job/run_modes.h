// Launch modes of `convoy run`. Each function returns the exit code.
#pragma once
#include "launch/prepare/prepare.h"
#include "launch/process/event_loop.h"

namespace convoy {

// Started alone: this process starts all ranks on this host.
int run_here(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed);

// Execution mode of a planned job for summary.json: {taken, because, tried: []}; null if the configuration names it.
// The plan chooses the mode from the devices and never from measurements: modes round differently, and equal runs must
// give equal bits.
Json choice_of(const PreparedRun& run, const JobPlan& job);

// Started alone with backend mpi: starts mpirun, which starts one `convoy` per rank.
struct MpirunHosts {
  std::vector<std::string> slots;         // "node1:4", in order of ranks; empty: this host
  std::vector<std::string> remote_shell;  // command with which mpirun starts its daemons
  std::string address;                    // address of the control channel
  std::vector<std::string> not_networks;  // "172.17.0.1/16": networks that connect no hosts
  std::vector<std::string> notes;         // lines for the user
};
int run_through_mpirun(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed, const MpirunHosts& hosts = {});

// Started alone: run_here, or run_through_mpirun with backend mpi.
int start_alone(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed);

// Refuses a limit on the size of files with which MPI would wait for ever in MPI_Init. Error(io).
void check_mpi_file_limit();

// With --hosts: starts one agent per host through a remote shell; the agent is the parent of the host's ranks.
int run_on_hosts(EventLoop& loop, PreparedRun run);
// Node 0 of several: does the same with the agents that join at the rendezvous (launch/job/node_rendezvous.h).
int run_on_nodes(EventLoop& loop, PreparedRun run, const NodeRole& role);
// The agent on another host: reads its request and plan from standard input (launch/job/agent.h).
int run_agent_for_host(EventLoop& loop);

// Rank 0 of a launcher: supervises the job and starts one rank process.
int run_as_supervisor(EventLoop& loop, const PreparedRun& run, const Host& host);

// Another rank of a launcher, any rank in an mpirun that `convoy` started (run.as.channel), or all ranks of a host:
// starts rank processes for the supervisor. The rendezvous file appears in `requested_folder`.
struct AgentRequest {
  LaunchedAs as = {};
  Variables variables = {};
  std::string rank_program = {};
  std::string requested_folder = {};
  double rendezvous = LaunchConfig().rendezvous;  // seconds
  std::vector<int> processes = {};                // indices into the job's processes; empty: that of as.rank
  Json config = {};  // the configuration if this process read it itself (without_locations), else null
  int input = -1;    // descriptor that reaches its end when the starter of this process is gone
};
int run_as_agent(EventLoop& loop, const AgentRequest& request, const Host& host);

}  // namespace convoy
