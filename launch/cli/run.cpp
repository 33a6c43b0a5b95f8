#include "backends/catalogue/catalogue.h"
#include "launch/cli/commands.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "core/config/reader.h"
#include "core/control/exit_codes.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/run/farm.h"
#include "launch/job/node_rendezvous.h"
#include "launch/job/run_modes.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"
#include "launch/process/orphan_guard.h"

namespace convoy {
namespace {

// Runs as a rank of a launcher. All ranks find the same mistakes: rank 0 reports them.
int run_launched(Node tree, const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  try {
    if (!as.channel.empty()) {
      const AgentRequest request{as, variables, rank_program()};
      const Host host = this_host({true, false});
      EventLoop loop;
      return run_as_agent(loop, request, host);
    }
    const PreparedRun run = prepare(std::move(tree), arguments, variables, as);
    if (as.pmi && as.size > 1 && (run.config.backend == "mpi" || run.config.backend == "auto")) check_mpi_file_limit();
    const Host host = this_host({may_use_gpus(run.config), true});
    EventLoop loop;
    if (as.rank == 0) return run_as_supervisor(loop, run, host);
    AgentRequest request{as, variables, rank_program()};
    request.requested_folder = requested_folder(folder_request(run));
    request.rendezvous = run.config.launch.rendezvous;
    request.config = without_locations(run.config.resolved);
    return run_as_agent(loop, request, host);
  } catch (const Error& error) {
    if (as.rank == 0) std::cerr << error.what() << '\n';
    return exit_code_of(error);
  }
}

// Role of this process among several nodes. Nothing under a launcher, which starts a process for each rank.
std::optional<NodeRole> role_of(const RunArguments& arguments, const Variables& variables, const LaunchedAs& as) {
  if (!arguments.use.is_null()) return std::nullopt;  // a command on a trained run stays on this node
  if (arguments.nodes.any() && !arguments.hosts.empty())
    throw Error(Failure::command_line,
                "--hosts conflicts with --nodes: --hosts starts the other hosts' ranks from here, "
                "and --nodes waits for a `convoy run` on each node; use one of them");
  if (as.launcher == Launcher::none) {
    if (!arguments.hosts.empty()) return std::nullopt;
    return node_role(arguments.nodes, variables, full_host_name);
  }
  if (arguments.nodes.any())
    throw Error(Failure::command_line, "--nodes conflicts with ", name_of(as.launcher),
                ", which started this process as rank ", as.rank, "; use one of them");
  return std::nullopt;
}

void refuse_farm_on_nodes(const std::optional<NodeRole>& role) {
  if (role)
    throw Error(Failure::config, role->from, "=", role->nodes,
                ": a farm runs on one node here; start it on several with mpirun or srun, and each of their ranks is a "
                "slot");
}

}  // namespace

int run_command(const RunArguments& arguments, std::optional<Node> parsed) {
  const Variables variables = current_variables();
  const LaunchedAs as = launched_as(variables);
  std::optional<NodeRole> role = role_of(arguments, variables, as);
  RunArguments on_node = arguments;
  if (role && role->nodes == 1) {
    if (on_node.ranks == 0) on_node.ranks = role->ranks;
    role.reset();
  }
  Node tree;
  // With a channel this process is an agent, and receives its job over it. All ranks find the same mistakes: rank 0
  // reports them.
  if (as.channel.empty()) try {
      tree = parsed ? *std::move(parsed) : configuration_tree(arguments);
      if (auto farm = read_farm(tree, arguments, variables, as)) {
        refuse_farm_on_nodes(role);
        return run_farm(std::move(*farm));
      }
    } catch (const Error& error) {
      if (as.rank == 0) throw;
      return exit_code_of(error.kind());
    }
  if (!arguments.hosts.empty()) {
    if (as.launcher != Launcher::none)
      throw Error(Failure::command_line, "--hosts conflicts with ", name_of(as.launcher),
                  ", which started this process as rank ", as.rank, "; use one of them");
    host_shares(arguments.hosts);  // checks the option before anything else
    PreparedRun run = prepare(std::move(tree), arguments, variables, as);
    EventLoop loop;
    return run_on_hosts(loop, std::move(run));
  }
  if (as.launcher != Launcher::none) {
    const pid_t parent = getppid();
    const int code = run_launched(std::move(tree), arguments, variables, as);
    remove_leftover_segment(variables);
    if (as.launcher == Launcher::open_mpi && getppid() != parent) remove_leftover_session(parent);  // mpirun was killed
    return code;
  }
  const PreparedRun run = prepare(std::move(tree), on_node, variables, as);
  if (role) {
    if (const std::string& backend = run.config.backend; backend != "auto" && backend_entry(backend).by_mpirun)
      throw ConfigError(location_of(run.config.resolved, "backend"), "backend", "is ", backend,
                        ", whose mpirun starts processes through a remote shell; with one convoy per node take "
                        "gloo or nccl, or start all by mpirun");
    EventLoop loop;
    refuse_one_rank_on_nodes(run, *role);
    return role->node == 0 ? run_on_nodes(loop, run, *role) : run_as_node(loop, run, *role);
  }
  const PlacedJob placed = placed_here(run);
  EventLoop loop;  // last, because it blocks the signals that it reads
  return start_alone(loop, run, placed);
}

}  // namespace convoy
