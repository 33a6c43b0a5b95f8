// `convoy run --hosts a,b`: this process serves and starts nothing itself; a `convoy` on every host, reached by the remote
// shell, is the parent of the ranks there.
//
// First all hosts are asked what they have (which checks the way there, path and version), then the job is planned and the
// address chosen that all of them can reach, then they are told what to start. Secret and plan go down the remote shell's
// standard input. With backend mpi the same questions are asked, and mpirun starts the ranks.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "core/utf8.h"
#include "core/version.h"
#include "launch/agent.h"
#include "launch/agent_messages.h"
#include "launch/exit_codes.h"
#include "launch/hosts.h"
#include "launch/run_modes.h"
#include "launch/session.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

class HostsRun {
 public:
  HostsRun(EventLoop& loop, PreparedRun run)
      : loop_(loop),
        run_(std::move(run)),
        shares_(host_shares(run_.arguments.hosts)),
        remote_shell_(run_.config.resolved.at("launch").at("remote_shell").get<std::vector<std::string>>()),
        calls_(shares_.size()),
        agent_(loop, {[this](int host, const std::string& line) { said(call(host), line); },
                      [this](int host, const ProcessEnd& end) { ended(call(host), end); }}) {}

  // What the hosts have, and the plan from it. The reason where they cannot be reached, or where this was stopped before
  // they had answered; throws what is wrong with the run itself.
  std::optional<Error> ask() {
    loop_.on_signal([this](int signal) { signalled(signal); });
    const std::vector<int> wanted = wanted_hosts();
    try {
      ask_hosts();
      placed_ = planned(wanted);
      address_ = placed_.job.backend == "local" ? "127.0.0.1" : chosen_address();
    } catch (const Error& error) {
      if (error.kind() != Failure::rendezvous && error.kind() != Failure::stopped) throw;
      agent_.kill_all();
      return error;
    }
    return std::nullopt;
  }

  bool by_mpirun() const { return placed_.job.backend == "mpi"; }

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

  Ending attempt(Attempts& attempts) {
    serve(attempts, address_, static_cast<int>(placed_.job.processes.size()));
    tell_plans();
    return wait_for_end();
  }

  // The summary says which host it was, as with any other failure.
  Ending failed_attempt(Attempts& attempts, const Error& problem) {
    serve(attempts, "127.0.0.1", static_cast<int>(std::max<int64_t>(run_.config.launch.ranks, 1)));
    session_->gang().fail({problem.kind(), -1, -1, 0, culprit_, problem.what()});
    return wait_for_end();
  }

 private:
  // One host: the remote shell and what came back from it.
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

  // A number of ranks that the file has is for whoever types no other.
  std::vector<int> wanted_hosts() {
    const int64_t ranks = run_.config.launch.ranks;
    const bool typed = mark_of(run_.config.resolved, "launch.ranks").file.rfind("--set", 0) == 0;
    std::vector<int> hosts = rank_hosts(shares_, typed ? static_cast<int>(ranks) : 0);
    run_.as.size_from = "--hosts";
    if (!hosts.empty()) run_.config.launch.ranks = static_cast<int64_t>(hosts.size());
    if (!hosts.empty()) run_.config.resolved["launch"]["ranks"] = hosts.size();
    return hosts;
  }

  // ---- asking ----------------------------------------------------------------------------------------------------

  void ask_hosts() {
    if (remote_shell_.empty())
      throw ConfigError(mark_of(run_.config.resolved, "launch.remote_shell"), "launch.remote_shell",
                        "is empty, and --hosts needs a program that executes a command on another host");
    const RemoteRequest request{version, std::filesystem::current_path().string(), forwarded(run_.variables),
                                wants_gpus(run_.config)};
    for (size_t i = 0; i < shares_.size(); ++i) {
      Call& one = calls_[i];
      one.name = shares_[i].name;
      one.here = is_here(one.name);
      ProcessStart start;
      start.argv = {own_path(), "agent"};
      start.environment = without_ranks(run_.variables);
      if (!one.here) start.argv = remote_command(remote_shell_, one.name, start.argv);
      start.with_input = true;
      agent_.start(static_cast<int>(i), start);
      agent_.send(static_cast<int>(i), to_line(request));
    }
    bool late = false;
    const double limit = run_.config.launch.rendezvous;
    const EventLoop::TimerId timer =
        loop_.after(milliseconds(static_cast<int64_t>(limit * 1000)), [&late] { late = true; });
    loop_.run_until([&] { return late || stopped_ || answered(); });
    loop_.cancel(timer);
    if (stopped_) throw Error(Failure::stopped, "asked to stop before the hosts had answered");
    check_answers(limit);
  }

  bool answered() const {
    const bool failed = std::any_of(calls_.begin(), calls_.end(), [](const Call& one) { return one.end.has_value(); });
    return failed || std::all_of(calls_.begin(), calls_.end(), [](const Call& one) { return one.hello.has_value(); });
  }

  void check_answers(double limit) {
    std::vector<std::string> silent;
    for (const Call& one : calls_) {
      if (one.hello && !one.hello->problem.empty()) refuse(one, one.hello->problem);
      if (one.hello && one.hello->version != version)
        refuse(one, str(own_path(), " is version ", one.hello->version, " there and ", version, " here"));
      if (one.end && !one.hello)
        refuse(one, str(shell_name(one), " ", describe(*one.end), " before convoy answered",
                        one.last_line.empty() ? "" : ": " + one.last_line, "; it was to execute ", own_path(),
                        " there: try `", join(remote_shell_, " "), " ", one.name, " ", own_path(), " --version`"));
      if (!one.hello) silent.push_back(one.name);
    }
    if (!silent.empty()) culprit_ = silent.front();
    if (!silent.empty())
      throw Error(Failure::rendezvous,
                  str("--hosts: no answer within ", human_seconds(limit), " (launch.rendezvous) from ",
                      join(silent, ", "), "; does `", join(remote_shell_, " "), " ", silent.front(), " true` answer?"));
    std::map<std::string, std::string> names;
    for (const Call& one : calls_) {
      const auto [same, fresh] = names.emplace(one.hello->host.name, one.name);
      if (!fresh)
        throw Error(Failure::command_line, str("--hosts: ", same->second, " and ", one.name, " are one host, ",
                                               one.hello->host.name, "; write it once, as in ", one.name, ":2"));
    }
  }

  [[noreturn]] void refuse(const Call& one, const std::string& why) {
    culprit_ = one.name;
    throw Error(Failure::rendezvous, str("--hosts: ", one.name, ": ", why));
  }

  std::string shell_name(const Call& one) const { return one.here ? own_path() : remote_shell_.front(); }

  // ---- planning --------------------------------------------------------------------------------------------------

  Placed planned(const std::vector<int>& wanted) {
    Topology topology;
    for (const Call& one : calls_) topology.hosts.push_back(one.hello->host);
    Placed placed = plan_and_place(run_, topology, wanted);
    for (size_t process = 0; process < placed.job.processes.size(); ++process)
      call(placed.job.processes[process].host).processes.push_back(static_cast<int>(process));
    for (const Call& one : calls_)
      if (one.processes.empty())
        throw Error(Failure::command_line,
                    str("--hosts: ", one.name, " would get none of the ", placed.job.ranks.size(), " ranks in ",
                        placed.job.processes.size(), " processes; leave it out, or ask for more with --ranks"));
    return placed;
  }

  // The rule of launch.address: a common network, else the one way that leads to all of them, else nothing is guessed.
  std::string chosen_address() {
    const std::vector<Interface> here = interfaces_here();
    const std::string& configured = run_.config.launch.address;
    if (!configured.empty()) return configured_address(configured, here);
    std::vector<std::vector<Interface>> others;
    std::vector<std::string> ways, told{str("this host ", shown(here))};
    for (const Call& one : calls_) {
      if (one.here) continue;
      others.push_back(one.hello->interfaces);
      ways.push_back(way_to(one.name));
      told.push_back(str(one.name, " ", shown(one.hello->interfaces)));
    }
    if (others.empty()) return "127.0.0.1";
    if (const auto common = common_network(here, others)) {
      notes_.push_back(str("control channel on ", common->name, " ", common->address, "/", common->prefix,
                           ", a network of all hosts"));
      return common->address;
    }
    if (!ways.front().empty() && std::count(ways.begin(), ways.end(), ways.front()) == static_cast<long>(ways.size())) {
      notes_.push_back(str("no network has an address of every host; control channel on ", ways.front(),
                           ", from which the other hosts are reached (launch.address names another)"));
      return ways.front();
    }
    throw Error(Failure::rendezvous, str("--hosts: no address of this host is one that all hosts can reach: ",
                                         join(told, "; "), "; set launch.address"));
  }

  // ---- running ---------------------------------------------------------------------------------------------------

  void serve(Attempts& attempts, const std::string& address, int processes) {
    GangRequest request;
    request.processes = processes;
    request.joins = true;
    request.launch = run_.config.launch;
    request.address = address;
    Session::Actions actions;
    actions.on_joined = [this](const std::vector<Join>&) { session_->begin(placed_); };
    actions.on_failure = [](const Abort&) {};  // the agents hear of it over the channel
    session_ = std::make_unique<Session>(loop_, run_, attempts, request, actions);
    if (attempts.first())
      for (const std::string& note : notes_) session_->console().say(note);
  }

  void tell_plans() {
    const std::string channel = to_string(session_->gang().address());
    for (const Call& one : calls_)
      agent_.send(index_of(one),
                  to_line(RemotePlan{channel, one.processes, static_cast<int>(placed_.job.processes.size())}));
    for (const Call& one : calls_)
      if (one.end) lost(one);
  }

  Ending wait_for_end() {
    loop_.run_until([this] { return session_->gang().over(); });
    over_ = true;
    const Ending ending = session_->finish();
    agent_.kill_after(milliseconds(1000));  // a shell whose host is gone waits for ever
    loop_.run_until([this] { return agent_.idle(); });
    loop_.on_signal([](int) {});
    return ending;
  }

  // ---- events ----------------------------------------------------------------------------------------------------

  void said(Call& one, const std::string& line) {
    if (!one.hello) try {
        one.hello = remote_hello(line);
        if (one.hello) return;
      } catch (const std::exception& error) {
        one.last_line = str("its answer cannot be read (", error.what(), "): ", line.substr(0, 200));
        return;
      }
    one.last_line = line;
    if (!session_) {
      std::fprintf(stderr, "[%s] %s\n", one.name.c_str(), terminal_safe(line).c_str());
      return;
    }
    session_->logs().write("host-" + one.name, line);
    session_->console().print(str("[", one.name, "] ", line));
  }

  void ended(Call& one, const ProcessEnd& end) {
    one.end = end;
    if (!session_ || over_) return;
    // Its ranks' last words may still be on their way over the channel.
    loop_.after(milliseconds(500), [this, &one] { lost(one); });
  }

  void lost(const Call& one) {
    Gang& gang = session_->gang();
    if (over_ || gang.failed() || gang.over()) return;
    const int rank = placed_.job.processes.at(static_cast<size_t>(one.processes.front())).ranks.front();
    gang.fail({Failure::rendezvous, rank, -1, one.end->signal == 0 ? 0 : one.end->signal, one.hello->host.name,
               str(shell_name(one), " to ", one.name, " ", describe(*one.end), " before the ranks there had",
                   one.last_line.empty() ? "" : ": " + one.last_line)});
  }

  void signalled(int signal) {
    if (session_) return session_->stop(signal);
    stopped_ = true;
  }

  EventLoop& loop_;
  PreparedRun run_;
  const std::vector<HostShare> shares_;
  const std::vector<std::string> remote_shell_;
  std::vector<Call> calls_;
  Placed placed_;
  std::string address_;
  std::string culprit_;  // the host that kept the run from starting
  std::vector<std::string> notes_;
  bool stopped_ = false;
  bool over_ = false;
  Agent agent_;
  std::unique_ptr<Session> session_;
};

}  // namespace

int run_on_hosts(EventLoop& loop, PreparedRun run) {
  auto hosts = std::make_unique<HostsRun>(loop, run);
  std::optional<Error> problem = hosts->ask();
  if (problem && problem->kind() == Failure::stopped) throw *problem;
  if (!problem && hosts->by_mpirun()) return hosts->through_mpirun();
  RunFolder folder = open_run_folder(folder_request(run));
  if (folder.already_done) {
    if (problem) throw *problem;
    for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
    return exit_code::done;
  }
  Attempts attempts(std::move(folder), restart_rules(run));
  return make_attempts(loop, [&] {
    if (!hosts) {
      hosts = std::make_unique<HostsRun>(loop, run);
      problem = hosts->ask();
    }
    const Ending ending = problem ? hosts->failed_attempt(attempts, *problem) : hosts->attempt(attempts);
    hosts.reset();
    return ending;
  });
}

}  // namespace convoy
