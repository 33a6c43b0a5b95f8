// `convoy run --hosts a,b`: this process supervises; an agent on every host, started by the remote shell, is the parent
// of the ranks there.
//
// All hosts first report their resources, which checks the route, path and version. Then the supervisor plans the job,
// chooses an address that all hosts can reach, and sends each agent its processes. Secret and plan go to the remote
// shell's standard input. With backend mpi, mpirun starts the ranks after the same checks.
//
// With one `convoy` per node, the agents of other nodes come by themselves and do the same over a NodeRendezvous.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "backends/catalogue/catalogue.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/control/assignment.h"
#include "core/control/exit_codes.h"
#include "core/files/files.h"
#include "launch/job/agent.h"
#include "launch/job/node_rendezvous.h"
#include "launch/job/run_attempt.h"
#include "launch/job/run_modes.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

std::vector<HostShare> node_shares(const NodeRole& role) {
  std::vector<HostShare> shares;
  for (int node = 0; node < role.nodes; ++node) shares.push_back({NodeRole::name_of(node), role.ranks});
  return shares;
}

class HostsRun {
 public:
  // `rendezvous`: null with --hosts.
  HostsRun(EventLoop& loop, PreparedRun run, NodeRendezvous* rendezvous)
      : loop_(loop),
        tasks_(loop),
        run_(std::move(run)),
        rendezvous_(rendezvous),
        source_(rendezvous == nullptr ? "--hosts" : rendezvous->role().from),
        shares_(rendezvous == nullptr ? host_shares(run_.arguments.hosts) : node_shares(rendezvous->role())),
        remote_shell_(run_.config.launch.remote_shell),
        calls_(shares_.size()),
        agent_(loop, {[this](int child, const std::string& line) {
                        is_call(child) ? line_received(call(child), line) : joining_line(child, line);
                      },
                      [this](int child, const ProcessEnd& end) {
                        is_call(child) ? ended(call(child), end) : joining_ended(child, end);
                      }}) {}

  ~HostsRun() { loop_.on_signal(nullptr); }  // its task refers to this object

  // Collects the hosts' resources and plans. Returns the error if hosts cannot be reached or if the run was stopped
  // before; throws errors of the run itself.
  std::optional<Error> ask() {
    if (rendezvous_ != nullptr) rendezvous_->begin_attempt();
    loop_.on_signal([this](int) { stopped_ = true; });
    const std::vector<int> wanted = wanted_hosts();
    std::optional<Error> problem;
    try {
      ask_hosts();
      placed_ = planned(wanted);
      address_ = backend_entry(placed_.job.backend).threads_only ? "127.0.0.1" : chosen_address();
      if (stopped_) throw Error(Failure::stopped, "stop requested before the ranks had started");
    } catch (const Error& error) {
      if (error.kind() != Failure::rendezvous && error.kind() != Failure::stopped) throw;
      agent_.kill_all();
      problem = error;
    }
    loop_.on_signal(nullptr);  // the next task receives later requests
    return problem;
  }

  bool by_mpirun() const { return backend_entry(placed_.job.backend).by_mpirun; }

  int through_mpirun() {
    MpirunHosts hosts;
    for (const Call& one : calls_) hosts.slots.push_back(str(one.name, ":", one.processes.size()));
    hosts.remote_shell = remote_shell_;
    hosts.address = address_;
    std::vector<std::vector<Interface>> networks;
    for (const Call& one : calls_) networks.push_back(one.hello->interfaces);
    hosts.not_networks = repeated_networks(networks);
    hosts.notes = notes_;
    for (const Call& one : calls_) agent_.end_input(index_of(one));
    agent_.kill_after(milliseconds(3000));
    loop_.run_until([this] { return agent_.idle(); });
    return run_through_mpirun(loop_, run_, placed_, hosts);
  }

  AttemptEnd attempt(RestartPolicy& policy) {
    serve(policy, address_);
    send_plans();
    return wait_for_end();
  }

  // Records a failure to start in the summary, with the host.
  AttemptEnd failed_attempt(RestartPolicy& policy, const Error& problem) {
    serve(policy, "127.0.0.1");
    attempt_->supervisor().fail({problem.kind(), -1, -1, 0, failed_host_, problem.what()});
    return wait_for_end();
  }

 private:
  // One host: its remote shell and its answers.
  struct Call {
    std::string name;  // as typed
    std::optional<RemoteHello> hello;
    std::optional<ProcessEnd> end;
    std::string last_line;
    bool here = false;
    std::vector<int> processes;
  };
  Call& call(int host) { return calls_.at(static_cast<size_t>(host)); }
  int index_of(const Call& one) const { return static_cast<int>(&one - calls_.data()); }
  // Numbers of children: of the hosts' shells, then of shells of ranks that join.
  bool is_call(int child) const { return child < static_cast<int>(calls_.size()); }
  int child_of(int started) const { return static_cast<int>(calls_.size()) + started; }
  int started_as(int child) const { return child - static_cast<int>(calls_.size()); }

  // Host of each rank. A number of ranks in the file counts only if the command line gives none.
  std::vector<int> wanted_hosts() {
    const int64_t ranks = run_.config.launch.ranks;
    const bool typed = location_of(run_.config.resolved, "launch.ranks").file.rfind("--set", 0) == 0;
    std::vector<int> hosts = rank_hosts(shares_, typed ? static_cast<int>(ranks) : 0, source_);
    run_.as.size_from = source_;
    if (!hosts.empty()) run_.config = run_.config.changed({{"launch", {{"ranks", hosts.size()}}}});
    return hosts;
  }

  // --- Collecting the hosts ---

  void ask_hosts() {
    if (rendezvous_ == nullptr && remote_shell_.empty())
      throw ConfigError(location_of(run_.config.resolved, "launch.remote_shell"), "launch.remote_shell",
                        "is empty, but --hosts needs a program that runs a command on another host");
    for (size_t i = 0; i < shares_.size(); ++i) {
      Call& one = calls_[i];
      one.name = shares_[i].name;
      one.here = rendezvous_ == nullptr ? is_here(one.name) : i == 0;
      if (rendezvous_ != nullptr && !one.here) continue;
      start_agent(static_cast<int>(i), one);
    }
    const double limit = run_.config.launch.rendezvous;
    loop_.run_until([&] { return stopped_ || answered(); }, to_milliseconds(limit));
    if (stopped_) throw Error(Failure::stopped, "stop requested before the hosts had answered");
    if (rendezvous_ != nullptr && rendezvous_->problem()) throw *rendezvous_->problem();
    check_answers(limit);
  }

  void start_agent(int child, const Call& on) {
    ProcessStart start;
    start.argv = {program_path(), "agent"};
    start.environment = without_ranks(run_.variables);
    if (!on.here) start.argv = remote_command(remote_shell_, on.name, start.argv);
    start.with_input = true;
    agent_.start(child, start);
    const RemoteRequest request{version, working_folder(), forwarded(run_.variables), may_use_gpus(run_.config),
                                run_.config.program.empty() ? "" : run_.config.program.front()};
    agent_.send(child, to_line(request));
  }

  bool answered() {
    for (size_t i = 1; rendezvous_ != nullptr && i < calls_.size(); ++i) {
      const RemoteHello* hello = rendezvous_->hello(static_cast<int>(i));
      calls_[i].hello = hello == nullptr ? std::nullopt : std::make_optional(*hello);
    }
    if (rendezvous_ != nullptr && rendezvous_->problem()) return true;
    const bool failed = std::any_of(calls_.begin(), calls_.end(), [](const Call& one) { return one.end.has_value(); });
    return failed || std::all_of(calls_.begin(), calls_.end(), [](const Call& one) { return one.hello.has_value(); });
  }

  void check_answers(double limit) {
    std::vector<std::string> unanswered;
    for (const Call& one : calls_) {
      if (one.hello && !one.hello->problem.empty()) refuse(one, one.hello->problem);
      if (one.hello && one.hello->version != version)
        refuse(one, str(program_path(), " is version ", one.hello->version, " there and ", version,
                        " here; install one version on all hosts"));
      if (one.end && !one.hello)
        refuse(one, str(shell_name(one), " ", end_text(*one.end), " before convoy answered",
                        one.last_line.empty() ? "" : ": " + one.last_line, "; it should execute ", program_path(),
                        " there: try `", join(remote_shell_, " "), " ", one.name, " ", program_path(), " --version`"));
      if (!one.hello) unanswered.push_back(one.name);
    }
    if (!unanswered.empty()) failed_host_ = unanswered.front();
    if (!unanswered.empty())
      throw rendezvous_ != nullptr
          ? Error(Failure::rendezvous, source_, "=", calls_.size(), ": within ", human_seconds(limit),
                  " (launch.rendezvous) nothing came from ", join(unanswered, ", "), "; node 0 waits at ",
                  rendezvous_->address(), " port ", rendezvous_->role().port,
                  rendezvous_->refused().empty() ? "; start the same command there with the number of that node"
                                                 : "; " + rendezvous_->refused())
          : Error(Failure::rendezvous, "--hosts: no answer within ", human_seconds(limit), " (launch.rendezvous) from ",
                  join(unanswered, ", "), "; does `", join(remote_shell_, " "), " ", unanswered.front(),
                  " true` answer?");
    std::map<std::string, std::string> names;
    for (const Call& one : calls_) {
      const auto [same, fresh] = names.emplace(one.hello->host.name, one.name);
      if (!fresh)
        throw Error(failure_of_source(source_), source_, ": ", same->second, " and ", one.name, " are the same host, ",
                    one.hello->host.name,
                    rendezvous_ != nullptr ? "; start one `convoy run` on each host"
                                           : str("; write it once, such as ", one.name, ":2"));
    }
  }

  [[noreturn]] void refuse(const Call& one, const std::string& why) {
    failed_host_ = one.name;
    throw Error(Failure::rendezvous, source_, ": ", one.name, ": ", why);
  }

  std::string shell_name(const Call& one) const { return one.here ? program_path() : remote_shell_.front(); }

  // --- Planning ---

  PlacedJob planned(const std::vector<int>& wanted) {
    Topology topology;
    for (const Call& one : calls_) topology.hosts.push_back(one.hello->host);
    PlacedJob placed = plan_and_place(run_, topology, wanted);
    for (size_t process = 0; process < placed.job.processes.size(); ++process)
      call(placed.job.processes[process].host).processes.push_back(static_cast<int>(process));
    if (placed.job.ranks.size() == 1 && calls_.size() > 1)
      refuse_one_rank(source_, calls_.size(), rendezvous_ != nullptr ? "nodes" : "hosts");
    for (const Call& one : calls_)
      if (one.processes.empty())
        throw Error(failure_of_source(source_), source_, ": ", one.name, " gets none of the ", placed.job.ranks.size(),
                    " ranks in ", placed.job.processes.size(), " processes; leave it out, or give more --ranks");
    return placed;
  }

  // Chooses by the rule of launch.address: a common network, else the interface that leads to all hosts, else none.
  std::string chosen_address() {
    const std::vector<Interface> here = interfaces_here();
    const std::string& configured = run_.config.launch.address;
    if (!configured.empty()) return configured_address(configured, here);
    if (rendezvous_ != nullptr) return rendezvous_->address();  // all nodes have reached it
    std::vector<std::vector<Interface>> others;
    std::vector<std::string> sources, networks_text{str("this host ", shown(here))};
    for (const Call& one : calls_) {
      if (one.here) continue;
      others.push_back(one.hello->interfaces);
      sources.push_back(address_towards(one.name));
      networks_text.push_back(str(one.name, " ", shown(one.hello->interfaces)));
    }
    if (others.empty()) return "127.0.0.1";
    if (const auto common = common_network(here, others)) {
      notes_.push_back(str("control channel on ", common->name, " ", common->address, "/", common->prefix,
                           ", a network of all hosts"));
      return common->address;
    }
    if (!sources.front().empty() &&
        std::count(sources.begin(), sources.end(), sources.front()) == static_cast<long>(sources.size())) {
      notes_.push_back(str("no network has an address of every host; control channel on ", sources.front(),
                           ", from which the other hosts are reached (launch.address names another)"));
      return sources.front();
    }
    throw Error(Failure::rendezvous,
                "--hosts: this host has no address that all hosts can reach: ", join(networks_text, "; "),
                "; set launch.address");
  }

  // --- Running ---

  void serve(RestartPolicy& policy, const std::string& address) {
    JobRequest request;
    // Without a placement, hosts and their number of ranks are unknown.
    request.processes = placed_.job.processes.empty() ? static_cast<int>(std::max<int64_t>(run_.config.launch.ranks, 1))
                                                      : static_cast<int>(placed_.job.processes.size());
    request.joins = true;
    request.address = address;
    for (const ProcessPlan& process : placed_.job.processes)
      request.hosts.push_back(call(process.host).hello->host.name);
    RunAttempt::Actions actions;
    actions.on_joined = [this](const std::vector<Host>&) { attempt_->begin(placed_); };
    // The agents receive the abort over the channel. Ranks that joined later have no agent: kills their shells.
    actions.on_failure = [this](const Abort&) {
      tasks_.after(to_milliseconds(run_.config.launch.failure_grace), [this] {
        for (const auto& [child, plan] : joining_) agent_.kill_one(child);
      });
    };
    actions.on_left = [this](int started) { agent_.kill_one(child_of(started)); };
    if (rendezvous_ == nullptr)
      actions.start = [this](int started, const RankAssignment& assignment, int process, const std::string& channel) {
        start_joining(started, assignment, process, channel);
      };
    attempt_ = std::make_unique<RunAttempt>(loop_, run_, policy, request, actions);
    if (policy.first())
      for (const std::string& note : notes_) attempt_->console().log(note);
  }

  void send_plans() {
    const std::string channel = to_string(attempt_->supervisor().address());
    for (const Call& one : calls_) {
      const RemotePlan plan{channel, one.processes, static_cast<int>(placed_.job.processes.size())};
      if (one.here || rendezvous_ == nullptr)
        agent_.send(index_of(one), to_line(plan));
      else
        rendezvous_->send_plan(index_of(one), plan);
    }
    for (const Call& one : calls_)
      if (one.end) lost(one);
  }

  AttemptEnd wait_for_end() {
    loop_.run_until([this] { return attempt_->supervisor().over(); });
    over_ = true;
    const AttemptEnd end = attempt_->finish();
    agent_.kill_after(milliseconds(1000));  // the shell of a lost host waits for ever
    loop_.run_until([this] { return agent_.idle(); });
    return end;
  }

  // --- Ranks that join: each has a shell of its own, whose lines and exit code are those of the rank ---

  void start_joining(int started, const RankAssignment& assignment, int process, const std::string& channel) {
    const JobPlan& job = assignment.job;
    const RemotePlan plan{channel, {process}, static_cast<int>(job.processes.size()), to_json(assignment)};
    joining_[child_of(started)] = to_line(plan);
    start_agent(child_of(started), call(job.processes.at(static_cast<size_t>(process)).host));
  }

  void joining_line(int child, const std::string& line) {
    std::string& plan = joining_.at(child);
    std::string problem;
    if (!plan.empty()) try {
        if (const std::optional<RemoteHello> hello = remote_hello(line)) {
          if (hello->problem.empty()) agent_.send(child, plan);
          plan.clear();
          problem = hello->problem;
          if (problem.empty()) return;
        }
      } catch (const std::exception& error) {
        problem = str("its answer cannot be read (", error.what(), ")");
      }
    attempt_->line(started_as(child), problem.empty() ? line : problem);
  }

  void joining_ended(int child, const ProcessEnd& end) {
    if (over_) return;
    ProcessEnd rank = end;
    // ssh ends with 255 if it loses the host, and convoy there with the other codes if it loses this process.
    const bool lost =
        end.signal != 0 || end.code == 255 || end.code == exit_code::rendezvous || end.code == exit_code::peer_lost;
    if (lost && attempt_->supervisor().only_exits())
      rank = {};  // nothing is lost with the host
    else if (end.code == 255)
      rank = {0, SIGKILL};
    else if (end.code > exit_code::signal_base)
      rank = {0, end.code - exit_code::signal_base};
    attempt_->ended(started_as(child), rank);
  }

  // --- Events ---

  void line_received(Call& one, const std::string& line) {
    if (!one.hello) try {
        one.hello = remote_hello(line);
        if (one.hello) return;
      } catch (const std::exception& error) {
        one.last_line = str("its answer cannot be read (", error.what(), "): ", line.substr(0, 200));
        return;
      }
    one.last_line = line;
    if (!attempt_) {
      std::fprintf(stderr, "[%s] %s\n", one.name.c_str(), terminal_safe(line).c_str());
      return;
    }
    attempt_->logs().write("host-" + one.name, line);
    attempt_->console().print(str("[", one.name, "] ", line));
  }

  void ended(Call& one, const ProcessEnd& end) {
    one.end = end;
    if (!attempt_ || over_) return;
    // The last messages of its ranks may still arrive over the channel.
    tasks_.after(milliseconds(500), [this, &one] { lost(one); });
  }

  void lost(const Call& one) {
    if (over_ || attempt_->supervisor().failed() || attempt_->supervisor().over()) return;
    const std::string message =
        str(shell_name(one), " to ", one.name, " ", end_text(*one.end), " before the ranks there had ended",
            one.last_line.empty() ? "" : ": " + one.last_line);
    for (const int process : one.processes)
      if (!attempt_->lost(process, message, one.end->signal)) return;
  }

  EventLoop& loop_;
  OwnedTasks tasks_;
  PreparedRun run_;
  NodeRendezvous* const rendezvous_;
  const std::string source_;  // the option or variable that gave the hosts
  const std::vector<HostShare> shares_;
  const std::vector<std::string> remote_shell_;
  std::vector<Call> calls_;
  std::map<int, std::string> joining_;  // by child: its plan; "": it has got it
  PlacedJob placed_;
  std::string address_;
  std::string failed_host_;  // host that prevented the start
  std::vector<std::string> notes_;
  bool stopped_ = false;
  bool over_ = false;
  Agent agent_;
  std::unique_ptr<RunAttempt> attempt_;
};

int run_with_agents(EventLoop& loop, const PreparedRun& run, NodeRendezvous* rendezvous) {
  auto hosts = std::make_unique<HostsRun>(loop, run, rendezvous);
  std::optional<Error> problem = hosts->ask();
  if (problem && problem->kind() == Failure::stopped) throw *problem;
  if (!problem && hosts->by_mpirun()) return hosts->through_mpirun();
  RunFolder folder = open_run_folder(folder_request(run));
  if (folder.already_done && problem) throw *problem;
  if (reported_done(folder)) return exit_code::done;
  RestartPolicy policy(std::move(folder), restart_options(run));
  return run_attempts(loop, [&] {
    if (!hosts) {
      hosts = std::make_unique<HostsRun>(loop, run, rendezvous);
      problem = hosts->ask();
    }
    const AttemptEnd end = problem ? hosts->failed_attempt(policy, *problem) : hosts->attempt(policy);
    hosts.reset();
    return end;
  });
}

}  // namespace

int run_on_hosts(EventLoop& loop, PreparedRun run) { return run_with_agents(loop, run, nullptr); }

int run_on_nodes(EventLoop& loop, PreparedRun run, const NodeRole& role) {
  NodeRendezvous rendezvous(loop, role, run.variables, run.config.launch);
  try {
    const int code = run_with_agents(loop, run, &rendezvous);
    rendezvous.finish(code);
    return code;
  } catch (const Error& error) {
    rendezvous.finish(exit_code_of(error.kind()), str("node 0 on ", host_name(), " ends: ", error.what()));
    throw;
  }
}

}  // namespace convoy
