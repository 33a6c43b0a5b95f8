#include "launch/commands/run.h"

#include <unistd.h>

#include <iostream>

#include "launch/exit_codes.h"
#include "launch/farm/farm.h"
#include "launch/hosts.h"
#include "launch/run_modes.h"
#include "launch/sweep.h"
#include "launch/topology.h"

namespace convoy {
namespace {

// The loop blocks the signals that it reads: it is made when only waiting for ranks is left.
int run_alone(const PreparedRun& run) {
  const Placed placed = placed_here(run);
  if (placed.farm) return run_farm(farm_run(run, *placed.farm));
  EventLoop loop;
  return start_alone(loop, run, placed);
}

AgentRequest agent_request(const LaunchedAs& as, const Variables& variables) {
  AgentRequest request;
  request.as = as;
  request.variables = variables;
  request.rank_program = rank_program();
  return request;
}

// Nothing where the file is one run. Under a launcher all meet the same mistakes: rank 0 alone tells them.
std::optional<int> run_several(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  try {
    auto farm = as.channel.empty() ? read_farm(arguments, variables, as) : std::nullopt;
    if (!farm) return std::nullopt;
    return run_farm(std::move(*farm));
  } catch (const Error& error) {
    if (as.rank == 0) throw;
    return exit_code_of(error.kind());
  }
}

// All ranks meet the same mistakes: rank 0 alone tells them.
int run_launched(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  try {
    if (!as.channel.empty()) {
      const AgentRequest request = agent_request(as, variables);
      const Host host = this_host({true, false});
      EventLoop loop;
      return run_as_agent(loop, request, host);
    }
    const PreparedRun run = prepare(arguments, variables, as);
    const Host host = this_host({wants_gpus(run.config), true});
    EventLoop loop;
    if (as.rank == 0) return run_as_server(loop, run, host);
    AgentRequest request = agent_request(as, variables);
    request.requested_folder = requested_folder(folder_request(run));
    request.rendezvous = run.config.launch.rendezvous;
    request.config = without_marks(run.config.resolved);
    return run_as_agent(loop, request, host);
  } catch (const CannotExecute& error) {
    if (as.rank == 0) std::cerr << error.what() << '\n';
    return error.code();
  } catch (const Error& error) {
    if (as.rank == 0) std::cerr << error.what() << '\n';
    return exit_code_of(error.kind());
  }
}

}  // namespace

Placed placed_here(const PreparedRun& run) {
  return plan_and_place(run, Topology{{this_host({wants_gpus(run.config), false})}});
}

int start_alone(EventLoop& loop, const PreparedRun& run, const Placed& placed) {
  return placed.job.backend == "mpi" ? run_through_mpirun(loop, run, placed) : run_here(loop, run, placed);
}

int run_command(const RunArguments& arguments) {
  const Variables variables = current_variables();
  const LaunchedAs as = launched_as(variables);
  if (const auto code = run_several(arguments, variables, as)) return *code;
  if (!arguments.hosts.empty()) {
    if (as.launcher != Launcher::none)
      throw Error(Failure::command_line, str("--hosts starts ranks by itself, and this is rank ", as.rank, " of ",
                                             name_of(as.launcher), " already; leave one of them out"));
    host_shares(arguments.hosts);  // what is wrong with it is told before anything else
    PreparedRun run = prepare(arguments, variables, as);
    EventLoop loop;
    return run_on_hosts(loop, std::move(run));
  }
  if (as.launcher != Launcher::none) {
    const pid_t parent = getppid();
    const int code = run_launched(arguments, variables, as);
    sweep_own_segment(variables);
    if (as.launcher == Launcher::open_mpi && getppid() != parent) sweep_session(parent);  // it was killed
    return code;
  }
  return run_alone(prepare(arguments, variables, as));
}

}  // namespace convoy
