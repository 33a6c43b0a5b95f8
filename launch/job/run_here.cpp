// `convoy run` started alone: all ranks are children of this process.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "backends/catalogue/catalogue.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "launch/job/agent.h"
#include "launch/job/run_attempt.h"
#include "launch/job/run_modes.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"
#include "launch/prepare/used_run.h"
#include "launch/process/orphan_guard.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

// Returns the execution modes that the configuration leaves open.
std::vector<std::string> open_modes(const RunConfig& config) {
  const MemberFunctions& members = strategy_of(config).members;
  return members.modes ? members.modes(config) : std::vector<std::string>();
}

std::string mode_reason(const std::string& mode) {
  if (mode == "stacked") return "there is one rank";
  if (mode == "threads") return "one rank for each core set or GPU, as threads of one process";
  return "ranks of several hosts, of a launcher or of another backend than local are processes";
}

// Number of ranks of the checkpoint from which the run resumes, if the configuration leaves it open; else `planned`.
int64_t kept_ranks(const PreparedRun& run, const std::string& folder, int64_t planned) {
  if (run.config.launch.ranks > 0) return planned;
  const StoredConfig stored = resumed_config(folder, run.config.train.resume);
  if (stored.world_size <= 0) return planned;
  try {
    const RunConfig before = RunConfig::from_resolved(stored.config);
    const bool same = before.strategy.name == run.config.strategy.name &&
                      !strategy_of(before).members.modes(before).empty() &&
                      member_overrides(before).size() == member_overrides(run.config).size();
    return same ? stored.world_size : planned;
  } catch (const std::exception&) {  // not a configuration of this version
    return planned;
  }
}

// Keeps a resumed run's number of ranks, which determines the execution mode and rounding: replaces `placed` by a plan
// with the number of ranks of its checkpoint. If that cannot be planned on this host, it only adds a warning.
void keep_ranks(const PreparedRun& run, const std::string& folder, PlacedJob& placed) {
  if (open_modes(run.config).empty()) return;
  const auto planned_ranks = static_cast<int64_t>(placed.job.ranks.size());
  const int64_t ranks = kept_ranks(run, folder, planned_ranks);
  if (ranks == planned_ranks) return;
  const MemberFunctions& members = strategy_of(run.config).members;
  PreparedRun planned = run;
  try {
    planned.config = run.config.changed({{"launch", {{"ranks", ranks}}}});
    PlacedJob kept = placed_here(planned);
    kept.job.config = run.config;  // ranks receive the user's configuration
    kept.warnings.push_back(str("strategy.", members.mode_key, ": auto keeps ", members.mode(kept.job), " on ",
                                counted(kept.job.ranks.size(), "rank"),
                                ", as this training began; --ranks changes the number, and results by rounding"));
    placed = std::move(kept);
  } catch (const ConfigError& error) {
    placed.warnings.push_back(str("strategy.", members.mode_key, ": auto cannot keep ", counted(ranks, "rank"),
                                  ", as this training began (", error.what(), "); results may differ by rounding"));
  }
}

AttemptEnd one_attempt(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed, RestartPolicy& policy) {
  JobRequest request;
  request.processes = static_cast<int>(placed.job.processes.size());
  const std::string& address = run.config.launch.address;
  if (!address.empty()) request.address = configured_address(address, interfaces_here());

  std::unique_ptr<RunAttempt> attempt;
  Agent agent(loop, {[&](int process, const std::string& line) { attempt->line(process, line); },
                     [&](int process, const ProcessEnd& end) { attempt->ended(process, end); }});
  RunAttempt::Actions actions;
  actions.on_failure = [&](const Abort& cause) {
    const double grace = cause.kind == Failure::stopped ? 0 : run.config.launch.failure_grace;
    agent.kill_after(to_milliseconds(grace));
  };
  actions.on_left = [&](int process) { agent.kill_one(process); };
  actions.start = [&](int started, const RankAssignment& assignment, int process, const std::string& channel) {
    agent.start(started, rank_process(run.rank_program, assignment, process, channel, without_ranks(run.variables)));
  };
  attempt = std::make_unique<RunAttempt>(loop, run, policy, request, actions);

  try {
    attempt->begin(placed);
    const std::string channel = to_string(attempt->supervisor().address());
    for (int process = 0; process < request.processes; ++process)
      actions.start(process, attempt->assignment(), process, channel);
  } catch (const Error& error) {
    attempt->begin_failed(error);
    throw;
  }
  loop.run_until([&] { return attempt->supervisor().over() && agent.idle(); });
  return attempt->finish();
}

using std::chrono::milliseconds;

// Excludes networks that do not connect hosts: Open MPI uses every network, and waits for ever on a container's bridge.
// It refuses a second choice, so a choice of the user stays.
void leave_out_networks(const Variables& variables, const MpirunHosts& hosts, std::vector<std::string>& line) {
  if (hosts.not_networks.empty()) return;
  for (const std::string layer : {"btl", "oob"}) {
    const std::string name = layer + "_tcp_if_";
    if (variables.count("OMPI_MCA_" + name + "include") + variables.count("OMPI_MCA_" + name + "exclude") > 0) continue;
    line.insert(line.end(), {"--mca", name + "exclude", "127.0.0.1/8," + join(hosts.not_networks, ",")});
  }
}

// Adds options for other hosts: how to start daemons there, how to notice a lost host, and the environment variables
// that other hosts lack.
void add_hosts(const PreparedRun& run, const std::string& mpirun, const MpirunHosts& hosts,
               std::vector<std::string>& line) {
  for (const std::string& word : hosts.remote_shell)
    if (word.find(' ') != std::string::npos)
      throw Error(Failure::config, "launch.remote_shell: '", word,
                  "' has a space, at which mpirun would split it; put the "
                  "command into a script whose path has none, or use backend gloo");
  line.insert(line.end(), {"--host", join(hosts.slots, ","), "--mca", "plm_rsh_agent", join(hosts.remote_shell, " ")});
  // mpirun must notice a lost host, but after the heartbeat: the first one that ends the job gives the reason, and
  // mpirun does not know the rank or its host. The first probe may come at once, so only the time between probes is
  // certain.
  constexpr int probes = 5;
  const double limit = run.config.launch.heartbeat + run.config.launch.failure_grace + 10;
  line.insert(line.end(), {"--mca", "oob_tcp_keepalive_time", "10", "--mca", "oob_tcp_keepalive_intvl",
                           std::to_string(static_cast<int64_t>(std::ceil(limit / probes))), "--mca",
                           "oob_tcp_keepalive_probes", std::to_string(probes)});
  leave_out_networks(run.variables, hosts, line);
  const std::string folder = mpirun.substr(0, mpirun.rfind('/'));
  if (folder != "/usr/bin" && folder != "/bin") line.insert(line.end(), {"--prefix", folder + "/.."});
  for (const auto& variable : forwarded(run.variables)) line.insert(line.end(), {"-x", variable.first});
}

std::vector<std::string> mpirun_line(const PreparedRun& run, const std::string& mpirun, size_t ranks,
                                     const MpirunHosts& hosts) {
  // convoy binds the cores: mpirun's binding ignores the resources of this process. The channel's secret is in the
  // environment, never in argv, which all users of the host can read.
  std::vector<std::string> line{mpirun, "-n", std::to_string(ranks), "--bind-to", "none", "-x", "CONVOY_CHANNEL"};
  if (!hosts.slots.empty()) add_hosts(run, mpirun, hosts, line);
  line.push_back(program_path());
  line.insert(line.end(), run.arguments.words.begin(), run.arguments.words.end());
  if (!run.arguments.config.empty()) line.push_back(run.arguments.config);
  for (const std::string& set : run.arguments.overrides) line.insert(line.end(), {"--set", set});
  if (run.arguments.ranks > 0) line.insert(line.end(), {"--ranks", std::to_string(run.arguments.ranks)});
  if (!run.arguments.output.empty()) line.insert(line.end(), {"--output", run.arguments.output});
  if (!run.arguments.program.empty()) line.push_back("--");
  line.insert(line.end(), run.arguments.program.begin(), run.arguments.program.end());
  return line;
}

class Mpirun {
 public:
  Mpirun(EventLoop& loop, const PreparedRun& run, size_t ranks, const MpirunHosts& hosts)
      : loop_(loop),
        tasks_(loop),
        run_(run),
        ranks_(ranks),
        hosts_(hosts),
        agent_(loop, {[this](int, const std::string& line) { line_received(line); },
                      [this](int, const ProcessEnd& end) { ended(end); }}) {}

  AttemptEnd attempt(const std::string& program, RestartPolicy& policy) {
    JobRequest request;
    request.processes = static_cast<int>(ranks_);
    request.joins = true;
    const std::string& address = run_.config.launch.address;
    if (!address.empty()) request.address = configured_address(address, interfaces_here());
    if (!hosts_.address.empty()) request.address = hosts_.address;
    RunAttempt::Actions actions;
    actions.on_joined = [this](const std::vector<Host>& hosts) { all_joined(hosts); };
    actions.on_failure = [this](const Abort&) { end_mpirun_after(run_.config.launch.failure_grace + 2); };
    attempt_ = std::make_unique<RunAttempt>(loop_, run_, policy, request, actions);
    for (const std::string& note : hosts_.notes) attempt_->console().log(note);
    remove_leftover_open_mpi();
    start(program);
    loop_.run_until([this] { return attempt_->supervisor().over(); });
    const AttemptEnd end = attempt_->finish();
    end_mpirun_after(3);
    loop_.run_until([this] { return agent_.idle(); });
    if (end.exit_code != exit_code::done) {
      // Removes segments of killed ranks. Younger ones may belong to a job that is just starting.
      LeftoverPaths paths;
      paths.oldest_seconds = 1;
      remove_leftover_open_mpi(paths);
    }
    return end;
  }

  pid_t process() const { return mpirun_; }

 private:
  void start(const std::string& program) {
    ProcessStart start;
    start.argv = mpirun_line(run_, program, ranks_, hosts_);
    start.environment = without_ranks(run_.variables);
    start.environment["CONVOY_CHANNEL"] = to_string(attempt_->supervisor().address());
    // When a `convoy` ends with a failure's code, every rank has ended and knows its exit code. So mpirun can kill the
    // others without its usual second of waiting.
    start.environment.emplace("OMPI_MCA_odls_base_sigkill_timeout", "0");
    start.death_signal = 15;  // lets mpirun remove its session folder
    attempt_->console().log(join(start.argv, " "));
    mpirun_ = agent_.start(0, start);
  }

  void line_received(const std::string& line) {
    attempt_->logs().write("mpirun", line);
    // Once the ranks have joined, their lines come over the channel, and mpirun only prints notes about ends that are
    // known already.
    if (attempt_->supervisor().joined()) return;
    attempt_->console().print(line);
    if (line.find("as root") != std::string::npos) refused_root_ = true;
    if (line.find("not enough slots") != std::string::npos) few_slots_ = true;
  }

  void ended(const ProcessEnd& end) {
    const bool joined = attempt_->supervisor().joined();
    // The last messages of its agents may still arrive.
    tasks_.after(milliseconds(joined ? 500 : 50), [this, end, joined] {
      if (attempt_->supervisor().failed() || attempt_->supervisor().over() || attempt_->supervisor().only_exits())
        return;
      std::string message =
          str("mpirun ", end_text(end), joined ? " before the ranks had ended" : " before it had started all ranks");
      if (refused_root_)
        message +=
            "; to consent to running it as root, set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
      if (few_slots_)
        message += str("; it counts a slot for each core: to start ", ranks_,
                       " ranks all the same, set OMPI_MCA_rmaps_base_oversubscribe=1, or use fewer ranks or "
                       "--set backend=gloo");
      attempt_->supervisor().fail({Failure::rendezvous, -1, -1, end.signal, host_name(), message});
    });
  }

  void all_joined(const std::vector<Host>& hosts) {
    try {
      attempt_->begin(plan_and_place(run_, hosts));
    } catch (const Error& error) {
      attempt_->supervisor().fail({error.kind(), -1, -1, 0, "", error.what()});
    }
  }

  // mpirun ends after its ranks; this kills it if it does not.
  void end_mpirun_after(double seconds) { agent_.kill_after(to_milliseconds(seconds)); }

  EventLoop& loop_;
  OwnedTasks tasks_;
  const PreparedRun& run_;
  const size_t ranks_;
  const MpirunHosts& hosts_;
  pid_t mpirun_ = -1;
  bool refused_root_ = false;
  bool few_slots_ = false;
  Agent agent_;
  std::unique_ptr<RunAttempt> attempt_;
};

}  // namespace

Json choice_of(const PreparedRun& run, const JobPlan& job) {
  if (open_modes(run.config).empty()) return nullptr;
  const std::string taken = strategy_of(run.config).members.mode(job);
  return {{"taken", taken}, {"because", mode_reason(taken)}, {"tried", Json::array()}};
}

int run_here(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed) {
  RunFolder folder = open_run_folder(folder_request(run));
  if (reported_done(folder)) return exit_code::done;
  PlacedJob taken = placed;
  keep_ranks(run, folder.path, taken);
  RestartPolicy policy(std::move(folder), restart_options(run));
  return run_attempts(loop, [&] { return one_attempt(loop, run, taken, policy); });
}

// --- `convoy run` with backend mpi and without a launcher: mpirun is a child and starts one `convoy` per rank ---
//
// The control channel stops the ranks, then mpirun ends by itself: a TERM to mpirun would lose their exit codes. The
// user decides about the checks of mpirun: whether root may run it, and the number of slots.

// mpirun and its processes share files of 4 MiB (PMIx's data store). If they do not fit, a process ends with 1 or waits
// for ever in MPI_Init.
void check_mpi_file_limit() {
  constexpr rlim_t needed = 4 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < needed)
    throw Error(Failure::io, "backend mpi: a file may have at most ", human_bytes(limit.rlim_cur),
                " here (`ulimit -f`), and MPI shares files of ", human_bytes(needed),
                "; raise that limit, or use --set backend=gloo");
}

int run_through_mpirun(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed, const MpirunHosts& hosts) {
  check_mpi_file_limit();
  const std::string program = executable_path("mpirun",
                                              "install Open MPI (Debian: apt-get install openmpi-bin), or use "
                                              "--set backend=gloo");
  RunFolder folder = open_run_folder(folder_request(run));
  if (reported_done(folder)) return exit_code::done;
  RestartPolicy policy(std::move(folder), restart_options(run));
  return run_attempts(loop, [&] {
    auto mpirun = std::make_unique<Mpirun>(loop, run, placed.job.processes.size(), hosts);
    const AttemptEnd end = mpirun->attempt(program, policy);
    const pid_t process = mpirun->process();
    mpirun.reset();  // ends leftovers of a killed mpirun, which still use its session folder
    remove_leftover_session(process);
    return end;
  });
}

int start_alone(EventLoop& loop, const PreparedRun& run, const PlacedJob& placed) {
  return backend_entry(placed.job.backend).by_mpirun ? run_through_mpirun(loop, run, placed)
                                                     : run_here(loop, run, placed);
}

}  // namespace convoy
