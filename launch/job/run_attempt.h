// RunAttempt: one attempt of a run on the supervisor, in every launch mode: control channel, logs, progress, summary.
//
// Call order: constructor (serves the channel), begin (publishes the job), finish. The caller starts and kills
// processes. Threads: the event loop's.
#pragma once
#include <memory>
#include <optional>

#include "launch/cli/console.h"
#include "launch/job/job_supervisor.h"
#include "launch/job/live_files.h"
#include "launch/job/restart.h"
#include "launch/prepare/prepare.h"
#include "launch/prepare/run_folder.h"

namespace convoy {

class RunAttempt {
 public:
  struct Actions {
    std::function<void(const std::vector<Host>&)> on_joined;
    std::function<void(const Abort&)> on_failure;  // the owner must kill its processes
  };
  // `policy` must outlive this object. Takes `launch`, `config` and `resumes` of the request from `run`. Then the first
  // signal stops the job after a step, and the second one kills it. After `finish`, signals do nothing.
  RunAttempt(EventLoop& loop, const PreparedRun& run, RestartPolicy& policy, JobRequest request, Actions actions);

  JobSupervisor& supervisor() { return *supervisor_; }
  Console& console() { return console_; }
  RankLogs& logs() { return logs_; }
  const RankAssignment& assignment() const { return *assignment_; }

  void begin(const PlacedJob& placed);
  void begin_failed(const Error& error);  // writes the summary; the caller ends the run
  // Writes and reports the end of this attempt. The result holds the exit code of `convoy run`, or the restart delay.
  AttemptEnd finish();

 private:
  Json ended_summary(JobOutcome outcome) const;
  void write_end(const JobOutcome& outcome);
  bool refused_to_resume(const JobOutcome& outcome) const;
  void note_stop(int signal);
  void write_stopped(const JobOutcome& outcome);
  void injected(const Json& body);
  Json configuration() const;
  void start_summary(const JobPlan& job, const std::vector<PlacedRank>& table = {});
  void write_folder(const PlacedJob& placed);

  EventLoop& loop_;
  const PreparedRun& run_;
  RestartPolicy& policy_;
  const RunFolder& folder_;
  const std::chrono::steady_clock::time_point began_;  // the first attempt begins with the command
  Console console_;
  RankLogs logs_;
  LiveFiles live_;
  std::optional<RankAssignment> assignment_;
  std::optional<double> startup_seconds_;
  Json summary_;
  std::unique_ptr<JobSupervisor> supervisor_;  // last member: its callbacks use the others
};

// True if nothing is left to train in the folder; prints its notes then.
bool reported_done(const RunFolder& folder);

double unix_seconds();
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace convoy
