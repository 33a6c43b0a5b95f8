// JobSupervisor: one attempt of a job, seen by the `convoy` that serves its control channel. It tracks which agents
// joined, how each process ended, the failure cause and the ranks' results. Callbacks start and kill processes, so that
// every launch mode uses the same class.
//
// Threads: the event loop's; tasks from the channel's threads are posted there.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/rank_state/summary.h"
#include "launch/diagnose/stall_watch.h"
#include "launch/process/event_loop.h"
#include "launch/process/process.h"

namespace convoy {

// Topics and keys between agents and the supervisor, in addition to core/control/channel.h.
namespace job_topic {
inline constexpr char join[] = "join";    // {process, host, size, size_from, config}
inline constexpr char ended[] = "ended";  // {process, code, signal, lack, made}; made: true if its agent killed it
// {process, why}: mpirun, srun or the remote shell that started this process's convoy is gone; the convoy kills it.
inline constexpr char launcher_gone[] = "launcher_gone";
inline constexpr char exit_code[] = "exit_code";  // key: the job's exit code, set after the summary is written
}  // namespace job_topic

struct JobRequest {
  std::string job;                      // id; "" for a random one
  std::string address = "127.0.0.1";    // interface of the control channel
  int processes = 0;                    // processes of the job; one rank each if agents join
  bool joins = false;                   // agents start the processes; else the caller does
  bool has_agents = false;              // agents joined an earlier membership, and report ends of processes there
  std::vector<std::string> hosts = {};  // by process; empty: agents report theirs, or all are on this one
  bool resumes = true;                  // a stop leaves a checkpoint from which the same command resumes
  bool stops_at_once = false;           // ranks have nothing to save, and are killed on a request to stop
  LaunchConfig launch;
  Json config = {};  // without_locations; agents compare it with the configuration that they read; null: no comparison
};

struct JobEvents {
  // All agents have joined: publish the job. `hosts`: by process, only resources that its agent may use.
  std::function<void(const std::vector<Host>& hosts)> on_joined;
  std::function<void(const Abort&)> on_failure;  // kill your processes
  std::function<void(int rank, const std::string& host, const std::string& line)> on_line;
  std::function<void(const std::string& topic, const Json& body)> on_report;  // progress, metrics
  std::function<void()> on_first_step;
  std::function<void(int rank)> on_rank_ready = nullptr;             // it connects to its peers now
  std::function<void(const std::string& text)> on_notice = nullptr;  // slow collectives, stall reports
  std::function<void(int signal)> on_stop = nullptr;                 // before any rank receives the request
  std::function<void()> on_saved = nullptr;  // all ranks have stopped and saved; processes still run
  // An agent reports the end of a process, by its number when it was started. Null: JobSupervisor::ended.
  std::function<void(int process, const ProcessEnd& end)> on_agent_report = nullptr;
  // Before a job fails because a process or its host does not answer. Returns true if the job continues without it.
  // `started`: `process` is its number when it was started, not the one that it has in the job now.
  // `how`: text that follows its name. `kind`: of the failure if the job cannot continue.
  std::function<bool(int process, bool started, const std::string& how, Failure kind)> on_unreachable = nullptr;
};

class JobSupervisor {
 public:
  JobSupervisor(EventLoop& loop, const JobRequest& request, JobEvents events);
  ~JobSupervisor();

  ChannelAddress address() const { return server_->address(); }
  void publish(const RankAssignment& assignment);
  void await_ranks();  // all ranks must be ready within launch.rendezvous from now

  void add_local_agent(int process, const Host& host);  // the caller is the parent of one rank
  void line(int process, const std::string& text);      // output of a local process
  void ended(int process, const ProcessEnd& end);
  void fail(const Abort& reason);
  // Returns how a rank process died, if the job may continue without it: it was killed, after all ranks had joined, and
  // no other failure or stop ends the job. `how`: see JobEvents; "": it has ended.
  std::optional<Abort> loss(int process, const ProcessEnd& end, const std::string& how = "") const;
  // True if the ranks of the job may change: all have joined and train, and no failure or stop ends the job.
  bool may_change() const;
  bool ends() const;  // a rank has made all its steps
  // Decides that the ranks change; `retire` must follow. Returns false if they have all trained to the end already.
  bool begin_change();
  // Another supervisor takes over the remaining processes. `next` goes to the ranks: protocol::next_membership.
  // `started`: by rank, the number of its process when it was started. From now on this object keeps the channel open
  // for ranks that have not left it yet, and only reports which of them do not answer.
  void retire(const Json& next, const Abort& loss, std::vector<int> started);
  // Ends the job because of a process that an earlier supervisor found unreachable.
  void fail_unreachable(int process, const std::string& how, Failure kind);
  // Returns true if nothing is lost with the host of this process: it has ended, or only_exits(). The job does not wait
  // for it.
  bool lost_after_results(int process);
  // Ends the job because the launcher of this process or its host is gone; `signal`: that ended the launcher.
  void fail_launcher(int process, const std::string& why, int signal = 0);
  void stop(int signal);             // signal of this process; a repeated request kills
  void signalled(const Json& body);  // protocol::signalled; all ranks and agents may report the same signal
  bool stopping() const { return stop_signal_ != 0; }
  bool has_agents() const { return request_.joins; }  // on its channel
  bool failed() const { return cause_.has_value(); }
  bool complete() const;    // all ranks have given their results
  bool only_exits() const;  // complete, and ranks only have to exit: those of a user's program may do any work
  bool joined() const;      // all agents have joined
  bool over() const;        // every process has ended
  bool saved() const;       // after a request to stop, all ranks have given their results: later events are no failures

  JobOutcome outcome();
  void publish_exit_code(int exit_code);
  bool agents_gone() const;  // all agents of other processes have left

 private:
  struct Participant {
    bool joined = false;
    bool left = false;
    std::string host;
    Host topology;
    std::optional<ProcessEnd> end;
  };
  ChannelServerEvents server_events();
  void add_agent(int process, const Host& host);
  bool same_size(const Json& body);
  bool same_config(const Json& body);
  void posted(const std::string& topic, const Json& body);
  void left(int id, bool orderly);
  void launcher_gone(int process, const std::string& why);
  void heartbeat_lost(int id, double seconds);
  void stalled(const StallWatch::Finding& found);
  std::string host_of(int rank) const;
  void aborted(Abort reason);
  void request_stop(int signal, bool at_once);  // at_once: repeated, or SIGQUIT
  void watch_results();
  void await_exits();
  void ended_by_agent(int process, const ProcessEnd& end);
  bool stopped_as_asked(const ProcessEnd& end) const;
  void ended_early(int process, const ProcessEnd& end);
  void check_ranks_started();
  bool limits_exits() const;
  bool has_results(int process) const;
  bool in_loop() const;
  Abort stop_reason() const;
  Abort unsaved_stop(int process, const std::string& what) const;
  int first_rank(int process) const;
  std::string label(int process) const;
  std::optional<Abort> reported_failure(int process) const;
  int64_t step_of(int rank) const;
  std::string positions_text(int process) const;
  int failed_rank_of(int process) const;
  std::string phase_of(int rank) const;
  std::chrono::milliseconds rendezvous() const;

  EventLoop& loop_;
  JobRequest request_;
  JobEvents events_;
  OwnedTasks tasks_;
  std::vector<Participant> participants_;
  std::optional<RankAssignment> assignment_;
  std::optional<Abort> cause_;
  std::optional<Abort> lost_;  // a lost peer: the failure cause only if no other follows
  int stop_signal_ = 0;
  bool ranks_stopped_ = false;  // ranks report that they stopped early
  bool retired_ = false;
  std::vector<int> started_;  // after retire: by rank, the number of its process when it was started
  StopRequests requests_;     // signals of this process
  std::set<int> in_loop_;     // ranks of a program that have entered Run::each_batch
  int awaits_ = 0;            // calls of await_ranks
  int undecided_ = 0;         // failures whose cause may still arrive
  bool all_joined_ = false;
  bool continues_ = false;  // from an earlier membership: its ranks had joined
  std::map<int, Json> infos_, results_;
  std::optional<Json> result_;
  std::chrono::steady_clock::time_point result_at_;  // arrival of `result_`
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
  std::unique_ptr<StallWatch> stalls_;
  Json stall_;
};

}  // namespace convoy
