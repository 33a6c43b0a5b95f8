// `convoy run` as rank 0 under mpirun, srun or torchrun's variables: it serves, and is the parent of rank 0 as well.
#include <cstdio>

#include "core/utf8.h"
#include "launch/agent.h"
#include "launch/exit_codes.h"
#include "launch/parent_watch.h"
#include "launch/rendezvous.h"
#include "launch/run_modes.h"
#include "launch/session.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

class Server {
 public:
  Server(EventLoop& loop, const PreparedRun& run, const Host& host)
      : loop_(loop),
        run_(run),
        host_(host),
        agent_(loop, {[this](int process, const std::string& line) { session_->gang().line(process, line); },
                      [this](int process, const ProcessEnd& end) { session_->gang().ended(process, end); }}) {}

  int run() {
    const FolderRequest wanted = folder_request(run_);
    GangRequest request;
    request.job = run_.as.job;
    const ServingAddress serving = serving_address(run_.config.launch.address, run_.as, run_.variables);
    request.address = serving.address;
    request.processes = run_.as.size;
    request.joins = true;
    request.launch = run_.config.launch;
    RunFolder folder;
    try {
      folder = open_run_folder(wanted);
    } catch (const Error& error) {
      // mpirun ends the others by itself.
      if (run_.as.launcher != Launcher::open_mpi) send_away(request, wanted, exit_code_of(error.kind()));
      throw;
    }
    if (folder.already_done) {
      for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
      send_away(request, wanted, exit_code::done);
      return exit_code::done;
    }
    Session::Actions actions;
    actions.on_joined = [this](const std::vector<Join>& joins) { all_joined(joins); };
    actions.on_failure = [this](const Abort& cause) { failed(cause); };
    attempts_.emplace(std::move(folder), RestartRules{});
    session_ = std::make_unique<Session>(loop_, run_, *attempts_, request, actions);
    if (!serving.note.empty()) session_->console().say(serving.note);
    if (restart_rules(run_).most > 0)
      session_->console().say(str("launch.max_restarts has no effect here: ", name_of(run_.as.launcher),
                                  " started the ranks and ends the job with the first that fails; start convoy alone, "
                                  "with backend=mpi for mpi, or have the job submitted again: it goes on from its "
                                  "checkpoint"));
    loop_.on_signal([this](int signal) { session_->stop(signal); });
    if (stays_as_parent(run_.as.launcher)) parent_ = std::make_unique<ParentWatch>(loop_, [this] { launcher_gone(); });

    rendezvous_.emplace(requested_folder(wanted), run_.as.job, session_->gang().address());
    session_->gang().add_local_agent(0, to_json(host_));
    loop_.run_until([this] { return session_->gang().over() && agent_.idle(); });
    const int code = refused_ ? exit_code_of(refused_->kind()) : session_->finish().exit_code;
    wait_for_agents(milliseconds(2000));
    return code;
  }

 private:
  void all_joined(const std::vector<Join>& joins) {
    rendezvous_.reset();  // nobody reads it any more, and whoever is killed removes nothing
    std::vector<Host> hosts;
    for (const Join& join : joins) hosts.push_back(host_from_json(join.host));
    try {
      session_->begin(plan_and_place(run_, hosts));
      agent_.start(0, rank_process(run_.rank_program, session_->assigned(), 0, to_string(session_->gang().address()),
                                   run_.variables));
    } catch (const Error& error) {
      refused_ = error;  // the session says it
      session_->gang().fail({error.kind(), -1, -1, 0, "", error.what()});
      session_->gang().tell_verdict(exit_code_of(error.kind()));
    }
  }

  void failed(const Abort& cause) {
    const double grace = cause.kind == Failure::stopped || launcher_gone_ ? 0 : run_.config.launch.failure_grace;
    agent_.kill_after(milliseconds(static_cast<int64_t>(grace * 1000)));
  }

  void launcher_gone() {
    launcher_gone_ = true;
    const bool stopping = session_->gang().stopping();
    session_->gang().fail({stopping ? Failure::stopped : Failure::rendezvous, -1, -1, 0, host_.name,
                           str(name_of(run_.as.launcher), ", which started the ranks, was killed or has ended",
                               stopping ? " before all ranks had saved" : "")});
  }

  // Tells the others to end with `code`, as there is nothing to do.
  void send_away(const GangRequest& request, const FolderRequest& wanted, int code) {
    try {
      Gang gang(loop_, request, {nullptr, [](const Abort&) {}, nullptr, nullptr, nullptr});
      gang.tell_verdict(code);
      const RendezvousFile file(requested_folder(wanted), run_.as.job, gang.address());
      bool late = false;
      loop_.after(milliseconds(5000), [&late] { late = true; });
      gang.add_local_agent(0, to_json(host_));
      loop_.run_until([&] { return late || (gang.joined() && gang.agents_left()); });
    } catch (const Error&) {
      // Where no file can be written they meet the same error themselves, or their limit for the rendezvous.
    }
  }

  void wait_for_agents(milliseconds limit) {
    bool late = false;
    const EventLoop::TimerId timer = loop_.after(limit, [&late] { late = true; });
    loop_.run_until([&] { return late || session_->gang().agents_left(); });
    loop_.cancel(timer);
  }

  EventLoop& loop_;
  const PreparedRun& run_;
  const Host& host_;
  std::optional<Error> refused_;
  bool launcher_gone_ = false;
  std::unique_ptr<ParentWatch> parent_;
  Agent agent_;
  std::optional<Attempts> attempts_;
  std::unique_ptr<Session> session_;
  std::optional<RendezvousFile> rendezvous_;
};

}  // namespace

int run_as_server(EventLoop& loop, const PreparedRun& run, const Host& host) {
  Server server(loop, run, host);
  return server.run();
}

}  // namespace convoy
