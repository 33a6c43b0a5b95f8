// `convoy run` with backend mpi, outside any launcher: mpirun is its child and starts one `convoy` per rank.
//
// Ranks are stopped over the control channel and end by themselves, then mpirun does: a TERM to it would lose their exit
// codes. It keeps its own ways where it must: whether root may run it, and how many slots there are, is the user's choice.
#include <cmath>
#include <cstdio>

#include "core/utf8.h"
#include "launch/agent.h"
#include "launch/agent_messages.h"
#include "launch/exit_codes.h"
#include "launch/networks.h"
#include "launch/run_modes.h"
#include "launch/session.h"
#include "launch/sweep.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Open MPI takes every network that it finds for one that leads to the others, and waits for ever on a container's bridge.
// Whoever has chosen networks for it is obeyed: it refuses to be told twice.
void leave_out_networks(const Variables& variables, const MpirunHosts& hosts, std::vector<std::string>& line) {
  if (hosts.not_networks.empty()) return;
  for (const std::string layer : {"btl", "oob"}) {
    const std::string name = layer + "_tcp_if_";
    if (variables.count("OMPI_MCA_" + name + "include") + variables.count("OMPI_MCA_" + name + "exclude") > 0) continue;
    line.insert(line.end(), {"--mca", name + "exclude", "127.0.0.1/8," + join(hosts.not_networks, ",")});
  }
}

// What mpirun needs to reach other hosts: how to get there, which of its own settings notice a host that is gone, and the
// environment that this shell has and theirs have not.
void add_hosts(const PreparedRun& run, const std::string& mpirun, const MpirunHosts& hosts,
               std::vector<std::string>& line) {
  for (const std::string& word : hosts.remote_shell)
    if (word.find(' ') != std::string::npos)
      throw Error(Failure::config, str("launch.remote_shell: mpirun takes it as one text cut at spaces, and '", word,
                                       "' has one; put it into a script without, or use backend gloo"));
  line.insert(line.end(), {"--host", join(hosts.slots, ","), "--mca", "plm_rsh_agent", join(hosts.remote_shell, " ")});
  // mpirun notices a host that vanished instead of waiting for ever, but not before the heartbeat has: whoever ends the
  // job first says why, and mpirun knows neither rank nor host. The first probe may come at once, so that only what lies
  // between the probes is sure to pass.
  constexpr int probes = 5;
  const double silence = run.config.launch.heartbeat + run.config.launch.failure_grace + 10;
  line.insert(line.end(), {"--mca", "oob_tcp_keepalive_time", "10", "--mca", "oob_tcp_keepalive_intvl",
                           std::to_string(static_cast<int64_t>(std::ceil(silence / probes))), "--mca",
                           "oob_tcp_keepalive_probes", std::to_string(probes)});
  leave_out_networks(run.variables, hosts, line);
  const std::string folder = mpirun.substr(0, mpirun.rfind('/'));
  if (folder != "/usr/bin" && folder != "/bin") line.insert(line.end(), {"--prefix", folder + "/.."});
  for (const auto& variable : forwarded(run.variables)) line.insert(line.end(), {"-x", variable.first});
}

std::vector<std::string> mpirun_line(const PreparedRun& run, const std::string& mpirun, size_t ranks,
                                     const MpirunHosts& hosts) {
  // Cores are bound by convoy: mpirun's own binding ignores what this process may use. The channel's secret travels by
  // environment, never in the line, which all users of the host can read.
  std::vector<std::string> line{mpirun, "-n", std::to_string(ranks), "--bind-to", "none", "-x", "CONVOY_CHANNEL"};
  if (!hosts.slots.empty()) add_hosts(run, mpirun, hosts, line);
  line.push_back(own_path());
  line.insert(line.end(), run.arguments.words.begin(), run.arguments.words.end());
  if (!run.arguments.config.empty()) line.push_back(run.arguments.config);
  for (const std::string& set : run.arguments.overrides) line.insert(line.end(), {"--set", set});
  if (run.arguments.ranks > 0) line.insert(line.end(), {"--ranks", std::to_string(run.arguments.ranks)});
  if (!run.arguments.output.empty()) line.insert(line.end(), {"--output", run.arguments.output});
  return line;
}

class Mpirun {
 public:
  Mpirun(EventLoop& loop, const PreparedRun& run, size_t ranks, const MpirunHosts& hosts)
      : loop_(loop),
        run_(run),
        ranks_(ranks),
        hosts_(hosts),
        agent_(loop, {[this](int, const std::string& line) { said(line); },
                      [this](int, const ProcessEnd& end) { ended(end); }}) {}

  ~Mpirun() { *alive_ = false; }
  Mpirun(const Mpirun&) = delete;
  Mpirun& operator=(const Mpirun&) = delete;

  Ending attempt(const std::string& program, Attempts& attempts) {
    GangRequest request;
    request.processes = static_cast<int>(ranks_);
    request.joins = true;
    request.launch = run_.config.launch;
    if (!request.launch.address.empty())
      request.address = configured_address(request.launch.address, interfaces_here());
    if (!hosts_.address.empty()) request.address = hosts_.address;
    Session::Actions actions;
    actions.on_joined = [this](const std::vector<Join>& joins) { all_joined(joins); };
    actions.on_failure = [this](const Abort&) { end_mpirun_after(run_.config.launch.failure_grace + 2); };
    session_ = std::make_unique<Session>(loop_, run_, attempts, request, actions);
    loop_.on_signal([this](int signal) { session_->stop(signal); });
    for (const std::string& note : hosts_.notes) session_->console().say(note);
    sweep_open_mpi();
    start(program);
    loop_.run_until([this] { return session_->gang().over(); });
    const Ending ending = session_->finish();
    end_mpirun_after(3);
    loop_.run_until([this] { return agent_.idle(); });
    loop_.on_signal([](int) {});
    if (ending.exit_code != exit_code::done) {
      // Ranks that were killed left their segments. A second old: a job that is just starting keeps its own.
      SweepPlaces places;
      places.oldest_seconds = 1;
      sweep_open_mpi(places);
    }
    return ending;
  }

  pid_t process() const { return mpirun_; }

 private:
  void start(const std::string& program) {
    ProcessStart start;
    start.argv = mpirun_line(run_, program, ranks_, hosts_);
    start.environment = without_ranks(run_.variables);
    start.environment["CONVOY_CHANNEL"] = to_string(session_->gang().address());
    // When the first `convoy` ends with a failure's code all have been told theirs and every rank has ended: the second
    // that mpirun would give the others is for nothing.
    start.environment.emplace("OMPI_MCA_odls_base_sigkill_timeout", "0");
    start.death_signal = 15;  // so that it removes its session folder
    session_->console().say(join(start.argv, " "));
    mpirun_ = agent_.start(0, start);
  }

  void said(const std::string& line) {
    session_->logs().write("mpirun", line);
    // Once the ranks are there, what they say comes over the channel, and mpirun only comments on ends that are told.
    if (session_->gang().joined()) return;
    session_->console().print(line);
    if (line.find("as root") != std::string::npos) refused_root_ = true;
    if (line.find("not enough slots") != std::string::npos) few_slots_ = true;
  }

  void ended(const ProcessEnd& end) {
    const bool joined = session_->gang().joined();
    // Its agents' last words may still be on their way.
    loop_.after(milliseconds(joined ? 500 : 50), [this, alive = alive_, end, joined] {
      if (!*alive || session_->gang().failed() || session_->gang().over()) return;
      std::string message =
          str("mpirun ", describe(end), joined ? " before the ranks had" : " before it had started all ranks");
      if (refused_root_)
        message +=
            "; to consent to running it as root, set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
      if (few_slots_)
        message += str("; it counts a slot for each core: to start ", ranks_,
                       " ranks all the same, set OMPI_MCA_rmaps_base_oversubscribe=1, or use fewer ranks or "
                       "--set backend=gloo");
      session_->gang().fail({Failure::rendezvous, -1, -1, end.signal, host_name(), message});
    });
  }

  void all_joined(const std::vector<Join>& joins) {
    std::vector<Host> hosts;
    for (const Join& join : joins) hosts.push_back(host_from_json(join.host));
    try {
      session_->begin(plan_and_place(run_, hosts));
    } catch (const Error& error) {
      session_->gang().fail({error.kind(), -1, -1, 0, "", error.what()});
    }
  }

  // It ends when its ranks have; this is for the case that it does not.
  void end_mpirun_after(double seconds) { agent_.kill_after(milliseconds(static_cast<int64_t>(seconds * 1000))); }

  EventLoop& loop_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // timers of an attempt outlive it
  const PreparedRun& run_;
  const size_t ranks_;
  const MpirunHosts& hosts_;
  pid_t mpirun_ = -1;
  bool refused_root_ = false;
  bool few_slots_ = false;
  Agent agent_;
  std::unique_ptr<Session> session_;
};

}  // namespace

int run_through_mpirun(EventLoop& loop, const PreparedRun& run, const Placed& placed, const MpirunHosts& hosts) {
  const std::string program = executable_path("mpirun",
                                              "install Open MPI (Debian: apt-get install openmpi-bin), or use "
                                              "--set backend=gloo");
  RunFolder folder = open_run_folder(folder_request(run));
  if (folder.already_done) {
    for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
    return exit_code::done;
  }
  Attempts attempts(std::move(folder), restart_rules(run));
  return make_attempts(loop, [&] {
    auto mpirun = std::make_unique<Mpirun>(loop, run, placed.job.processes.size(), hosts);
    const Ending ending = mpirun->attempt(program, attempts);
    const pid_t process = mpirun->process();
    mpirun.reset();  // ends what an mpirun that was killed has left, which still uses its session
    sweep_session(process);
    return ending;
  });
}

}  // namespace convoy
