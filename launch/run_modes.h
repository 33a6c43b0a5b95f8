// The ways in which `convoy run` may find itself started. Each returns the exit code.
#pragma once
#include "launch/event_loop.h"
#include "launch/prepare.h"

namespace convoy {

// Alone: this process starts all ranks on this host.
int run_here(EventLoop& loop, const PreparedRun& run, const Placed& placed);

// Alone with backend mpi: mpirun is started under supervision, one `convoy` per rank inside it.
int run_through_mpirun(EventLoop& loop, const PreparedRun& run, const Placed& placed);

// As rank 0 of a launcher: serves the others, and starts one rank process.
int run_as_server(EventLoop& loop, const PreparedRun& run, const Host& host);

// As another rank of a launcher, or as any rank inside an mpirun that `convoy` started (run.as.channel): starts one rank
// process and does what the server says. `requested` is the folder where the rendezvous file appears.
struct AgentRequest {
  LaunchedAs as;
  Variables variables;
  std::string rank_program;
  std::string requested_folder;
  double rendezvous = 300;  // seconds
};
int run_as_agent(EventLoop& loop, const AgentRequest& request, const Host& host);

}  // namespace convoy
