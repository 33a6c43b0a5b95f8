// Runs the queue of a farm: starts pipelines on free slots, preempts and ends them, retries failed ones, and takes
// further ones from the inbox. It records each event in the journal before it acts on it.
//
// When the same command runs again, done pipelines are skipped; failed and stopped ones resume from their newest
// checkpoint. Threads: the event loop's.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/farm/config/farm.h"
#include "launch/farm/report/report.h"
#include "launch/farm/run/farm.h"
#include "launch/job/console.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/event_loop.h"

namespace convoy {

class FarmSupervisor {
 public:
  // Throws ConfigError if a pipeline's folder has unknown files, or a run with another configuration.
  FarmSupervisor(EventLoop& loop, FarmRun& run, RunFolder folder, Cluster cluster);

  LauncherEvents events();                 // for the launcher that start() receives
  void start(PipelineLauncher& launcher);  // `launcher` must live until over()
  void stop(int signal);                   // first call: after a step and a checkpoint; second call: at once
  // Ends running pipelines, at once or after a step and a checkpoint, and the farm with `end`.
  void abort(const FarmEnd& end, bool now);
  bool over() const;
  int finish();  // writes the summary, prints the leaderboard, and returns the exit code

 private:
  void add(Pipeline pipeline);
  void resume_added();
  void check_folders();
  void check_inbox();
  void apply_request(const std::string& path);
  void cancel(int job);
  void schedule();
  void queue(int job);
  bool halves() const { return run_.farm.halving.eta > 0; }
  void advance_rungs();
  Trial trial_of(const PipelineState& entry) const;
  bool lower_is_better() const;
  void begin(const Allocation& allocation);
  LaunchSpec launch_spec(const PipelineState& entry, int job) const;
  void write_config(const PipelineState& entry) const;
  void started(int job, pid_t pid);
  void ended(int job, const ProcessEnd& end, const ResourceSample& used);
  void refused(int job, int exit_code, const std::string& message);
  void over_limit(int job, const std::string& what);
  void record_end(int job, const AttemptResult& result);
  void end_pipeline(int job, StopReason why, const std::string& detail);
  void start_time_limit(int job);
  void record(const PipelineState& entry, const std::string& event, const Json& details = Json::object());
  void record_stop();
  Json summary(const FarmEnd* end) const;
  void sync_journal();
  void log_line(int job, const std::string& text);
  void wake_at(double when);
  void tick();
  std::string host_of(const Allocation& allocation) const;

  EventLoop& loop_;
  FarmRun& run_;
  RunFolder folder_;
  Cluster cluster_;
  Console console_;
  Journal journal_;
  ResourceLog resources_;
  Inbox inbox_;
  Queue queue_;
  PipelineLauncher* launcher_ = nullptr;
  std::vector<PipelineState> pipelines_;
  std::map<int, std::unique_ptr<RankLogs>> logs_;  // logs of running pipelines
  std::map<std::string, JournalRecord> before_;    // by earlier farms in this folder
  OwnedTasks tasks_;
  double seconds_before_ = 0;  // earlier running time of the same farm, if it was continued
  std::chrono::steady_clock::time_point start_time_ = std::chrono::steady_clock::now();
  EventLoop::TimerId wake_ = 0;
  StopRequests requests_;
  int stop_signal_ = 0;
  std::optional<FarmEnd> abort_end_;
  uint64_t ticks_ = 0;
  bool scheduling_ = false, advancing_ = false;
  bool stopping_ = false;
};

}  // namespace convoy
