// `convoy run` as rank 0 under mpirun, srun or torchrun's variables: supervisor of the job and parent of rank 0.
#include "core/control/exit_codes.h"
#include "launch/job/agent.h"
#include "launch/job/rendezvous.h"
#include "launch/job/run_attempt.h"
#include "launch/job/run_modes.h"
#include "launch/process/orphan_guard.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

class SupervisorRun {
 public:
  SupervisorRun(EventLoop& loop, const PreparedRun& run, const Host& host)
      : loop_(loop),
        run_(run),
        host_(host),
        agent_(loop, {[this](int process, const std::string& line) { attempt_->supervisor().line(process, line); },
                      [this](int process, const ProcessEnd& end) { attempt_->supervisor().ended(process, end); }}) {}

  int run() {
    const RunFolderRequest wanted = folder_request(run_);
    JobRequest request;
    request.job = run_.as.job;
    const ServingAddress serving = serving_address(run_.config.launch.address, run_.as, run_.variables);
    request.address = serving.address;
    request.processes = run_.as.size;
    request.joins = true;
    request.launch = run_.config.launch;  // also for send_away
    RunFolder folder;
    try {
      folder = open_run_folder(wanted);
    } catch (const Error& error) {
      // mpirun itself ends the other ranks.
      if (run_.as.launcher != Launcher::open_mpi) send_away(request, wanted, exit_code_of(error.kind()));
      throw;
    }
    if (reported_done(folder)) {
      send_away(request, wanted, exit_code::done);
      return exit_code::done;
    }
    RunAttempt::Actions actions;
    actions.on_joined = [this](const std::vector<Host>& hosts) { all_joined(hosts); };
    actions.on_failure = [this](const Abort& cause) { failed(cause); };
    policy_.emplace(std::move(folder), RestartOptions{});
    attempt_ = std::make_unique<RunAttempt>(loop_, run_, *policy_, request, actions);
    if (!serving.note.empty()) attempt_->console().log(serving.note);
    if (restart_options(run_).most > 0)
      attempt_->console().log(str("launch.max_restarts has no effect here: ", name_of(run_.as.launcher),
                                  " started the ranks and ends the job with the first that fails; start convoy alone, "
                                  "with backend=mpi for mpi, or submit the job again: it resumes from its checkpoint"));
    if (stays_as_parent(run_.as.launcher)) parent_ = std::make_unique<ParentWatch>(loop_, [this] { launcher_gone(); });

    rendezvous_.emplace(requested_folder(wanted), run_.as.job, attempt_->supervisor().address());
    attempt_->supervisor().add_local_agent(0, host_);
    loop_.run_until([this] { return attempt_->supervisor().over() && agent_.idle(); });
    const int code = refused_ ? exit_code_of(refused_->kind()) : attempt_->finish().exit_code;
    loop_.run_until([this] { return attempt_->supervisor().agents_gone(); }, milliseconds(2000));
    return code;
  }

 private:
  void all_joined(const std::vector<Host>& hosts) {
    rendezvous_.reset();  // all ranks have read it, and a killed process would not remove it
    try {
      attempt_->begin(plan_and_place(run_, hosts));
      agent_.start(0, rank_process(run_.rank_program, attempt_->assignment(), 0,
                                   to_string(attempt_->supervisor().address()), run_.variables));
    } catch (const Error& error) {
      refused_ = error;  // RunAttempt reports it
      attempt_->supervisor().fail({error.kind(), -1, -1, 0, "", error.what()});
      attempt_->supervisor().publish_exit_code(exit_code_of(error.kind()));
    }
  }

  void failed(const Abort& cause) {
    const double grace = cause.kind == Failure::stopped || launcher_gone_ ? 0 : run_.config.launch.failure_grace;
    agent_.kill_after(to_milliseconds(grace));
  }

  void launcher_gone() {
    launcher_gone_ = true;
    if (attempt_->supervisor().only_exits()) {
      attempt_->supervisor().stop(SIGTERM);
      return agent_.kill_after(milliseconds(0));
    }
    const bool stopping = attempt_->supervisor().stopping();
    attempt_->supervisor().fail({stopping ? Failure::stopped : Failure::rendezvous, -1, -1, 0, host_.name,
                                 str(name_of(run_.as.launcher), ", which started the ranks, was killed or has ended",
                                     stopping ? " before all ranks had saved" : "")});
  }

  // Ends the other ranks with `code` when there is nothing to train. Waits for them at most as long as a rank that
  // starts late would wait for a supervisor.
  void send_away(const JobRequest& request, const RunFolderRequest& wanted, int code) {
    const milliseconds limit = to_milliseconds(run_.config.launch.rendezvous);
    bool stopped = false;
    loop_.on_signal([&](int) { stopped = true; });
    try {
      JobSupervisor supervisor(loop_, request, {nullptr, [](const Abort&) {}, nullptr, nullptr, nullptr});
      supervisor.publish_exit_code(code);
      const RendezvousFile file(requested_folder(wanted), run_.as.job, supervisor.address());
      supervisor.add_local_agent(0, host_);
      loop_.run_until([&] { return stopped || (supervisor.joined() && supervisor.agents_gone()); }, limit);
    } catch (const Error&) {
      // If the file cannot be written, the other ranks find the same error or reach their time limit.
    }
    loop_.on_signal(nullptr);
  }

  EventLoop& loop_;
  const PreparedRun& run_;
  const Host& host_;
  std::optional<Error> refused_;
  bool launcher_gone_ = false;
  std::unique_ptr<ParentWatch> parent_;
  Agent agent_;
  std::optional<RestartPolicy> policy_;
  std::unique_ptr<RunAttempt> attempt_;
  std::optional<RendezvousFile> rendezvous_;
};

}  // namespace

int run_as_supervisor(EventLoop& loop, const PreparedRun& run, const Host& host) {
  SupervisorRun supervisor_run(loop, run, host);
  return supervisor_run.run();
}

}  // namespace convoy
