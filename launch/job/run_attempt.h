// RunAttempt: one attempt of a run on the supervisor, in every launch mode: control channel, logs, progress, summary.
//
// Call order: constructor (serves the channel), begin (publishes the job), finish. The caller starts and kills
// processes. If it is their parent, it reports their lines and ends by `line` and `ended`: with launch.min_ranks the
// attempt then continues without killed processes (launch/job/membership.h). Threads: the event loop's.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/job/console.h"
#include "launch/job/job_supervisor.h"
#include "launch/job/join_requests.h"
#include "launch/job/live_files.h"
#include "launch/job/restart.h"
#include "launch/prepare/prepare.h"
#include "launch/prepare/run_folder.h"

namespace convoy {

class RunAttempt {
 public:
  struct Actions {
    std::function<void(const std::vector<Host>&)> on_joined;
    std::function<void(const Abort&)> on_failure;        // the owner must kill its processes
    std::function<void(int process)> on_left = nullptr;  // must be killed: it is in no later membership
    // Starts a process of the job as number `started`; null: this job cannot get more processes while it runs.
    std::function<void(int started, const RankAssignment& assignment, int process, const std::string& channel)> start =
        nullptr;
  };
  // `policy` must outlive this object. Takes `launch`, `config` and `resumes` of the request from `run`. Then the first
  // signal stops the job after a step, and the second one kills it. After `finish`, signals do nothing.
  RunAttempt(EventLoop& loop, const PreparedRun& run, RestartPolicy& policy, JobRequest request, Actions actions);

  JobSupervisor& supervisor() { return *supervisor_; }
  Console& console() { return console_; }
  RankLogs& logs() { return logs_; }
  const RankAssignment& assignment() const { return *assignment_; }

  void begin(const PlacedJob& placed);
  // `process`: its number when it was started.
  void line(int process, const std::string& text);
  void ended(int process, const ProcessEnd& end);
  // Call it when the host of a process, or the `convoy` on that host, is gone. Returns true if the job need not end: it
  // continues without the process, has all results, or no longer has this process. Otherwise ends the job and returns
  // false. `signal`: the one that ended the remote shell.
  bool lost(int process, const std::string& message, int signal);
  void begin_failed(const Error& error);  // writes the summary; the caller ends the run
  // Writes and reports the end of this attempt. The result holds the exit code of `convoy run`, or the restart delay.
  AttemptEnd finish();

 private:
  // A rank that joins: its process starts while the others train, on the channel of the next membership.
  struct Joining {
    enum class State { starts, trains, dropped };
    std::shared_ptr<State> state;  // for the callbacks of its supervisor
    std::unique_ptr<JobSupervisor> supervisor;
    RankAssignment assignment;
    JobRequest request;
    std::map<int, int> processes;  // number when it was started: its process in the next membership
    std::set<int> awaited;         // ranks that are not ready
    bool replaces = false;         // as a restart
    std::string why;
    std::string asked;  // token of the request; "": none
    std::chrono::steady_clock::time_point since;
  };
  // A change of the ranks whose first step is not done.
  struct UnfinishedChange {
    std::chrono::steady_clock::time_point since;
    std::string asked;
  };

  bool keeps_ranks() const;
  int current_process(int process) const;
  bool continue_without(int process, const Abort& loss);
  bool is_unreachable(int process, bool started, const std::string& how, Failure kind);
  JobRequest request_of(const JobPlan& job) const;
  RankAssignment next_assignment(const JobPlan& job, bool in_memory) const;
  void change_membership(std::unique_ptr<JobSupervisor> next, const RankAssignment& assignment,
                         const JobRequest& request, const std::vector<int>& ranks, const Abort& reason);
  void record_change(Json change, const UnfinishedChange& unfinished);
  std::string cannot_join() const;
  void begin_joining(const std::vector<RankPlan>& plans, bool replaces, const std::string& why,
                     const std::string& asked);
  JobEvents events_of_joining(const std::shared_ptr<Joining::State>& state);
  std::string joining_text() const;
  void add_joining();
  void answer_joining(const JoinAnswer& answer);
  void joining_failed(const std::string& reason);
  void drop_joining();
  void replace_lost(double delay);
  void read_requests();
  void add_rank_for(const std::string& asked);
  void continued(const Json& body);
  void first_step_done();
  Json ended_summary(JobOutcome outcome) const;
  // Writes the summary of a run that has not ended. A full disk does not end the run: the next summary has the same
  // facts, and room is kept for the last one. Not flushed, because ranks wait for this process.
  void write_running();
  void write_end(const JobOutcome& outcome);
  bool refused_to_resume(const JobOutcome& outcome) const;
  void publish_exit_code(int exit_code);
  void note_stop(int signal);
  void write_stopped(const JobOutcome& outcome, bool durable);
  void injected(const Json& body);
  Json configuration() const;
  void start_summary(const JobPlan& job, const std::vector<PlacedRank>& table = {}, const Json& topology = {});
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
  Topology hosts_;
  JobRequest request_;
  JobEvents events_;
  std::function<void(int process)> on_left_;
  bool direct_line_ = false;                  // `line` passes on a line of a process without an agent
  std::vector<int> current_processes_;        // by process as started: its process in the job now; -1: it has left
  std::vector<UnfinishedChange> unfinished_;  // the last ones in memberships() of the policy
  std::function<void(int, const RankAssignment&, int, const std::string&)> start_;
  std::vector<std::vector<RankPlan>> vacant_;  // plans of lost ranks that were not replaced
  std::unique_ptr<Joining> joining_;
  std::vector<std::unique_ptr<JobSupervisor>> dropped_;  // for ranks that did not join: a callback may still run
  int failed_joins_ = 0;                                 // in a row
  std::optional<JoinRequests> requests_;
  Json checked_data_;                                    // protocol::checked_data
  std::vector<std::unique_ptr<JobSupervisor>> retired_;  // for earlier memberships: ranks still read their channels
  std::unique_ptr<JobSupervisor> supervisor_;            // destroyed before the fields above: its callbacks use them
  OwnedTasks tasks_;                                     // destroyed first: tasks use the other fields
};

// True if nothing is left to train in the folder; prints its notes then.
bool reported_done(const RunFolder& folder);

}  // namespace convoy
