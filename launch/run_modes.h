// The ways in which `convoy run` may find itself started. Each returns the exit code.
#pragma once
#include "launch/event_loop.h"
#include "launch/prepare.h"

namespace convoy {

// Alone: this process starts all ranks on this host.
int run_here(EventLoop& loop, const PreparedRun& run, const Placed& placed);

// Alone with backend mpi: mpirun is started under supervision, one `convoy` per rank inside it.
struct MpirunHosts {
  std::vector<std::string> slots;         // "node1:4", in order of ranks; empty: this host
  std::vector<std::string> remote_shell;  // how mpirun starts its daemons there
  std::string address;                    // what the control channel listens on
  std::vector<std::string> not_networks;  // "172.17.0.1/16": those that lead from no host to another
  std::vector<std::string> notes;         // to be told
};
int run_through_mpirun(EventLoop& loop, const PreparedRun& run, const Placed& placed, const MpirunHosts& hosts = {});

// With --hosts: one `convoy` per host, started over a remote shell, is the parent of its ranks. Nothing runs here yet.
int run_on_hosts(EventLoop& loop, PreparedRun run);
// That `convoy` on its host, which reads from its standard input what to do (launch/agent_messages.h).
int run_for_another_host(EventLoop& loop);

// As rank 0 of a launcher: serves the others, and starts one rank process.
int run_as_server(EventLoop& loop, const PreparedRun& run, const Host& host);

// As another rank of a launcher, as any rank inside an mpirun that `convoy` started (run.as.channel), or for all ranks of
// a host: starts rank processes and does what the server says. `requested_folder` is where the rendezvous file appears.
struct AgentRequest {
  LaunchedAs as;
  Variables variables;
  std::string rank_program;
  std::string requested_folder;
  double rendezvous = 300;     // seconds
  std::vector<int> processes;  // of the job; empty: the one of as.rank
  Json config;                 // as this process read it (without_marks), where nobody else gave it the job; else null
  int input = -1;              // a descriptor whose end means that whoever started this is gone
};
int run_as_agent(EventLoop& loop, const AgentRequest& request, const Host& host);

}  // namespace convoy
