// Runs the queue of a farm: starts pipelines where slots are free, ends those that are to end, tries again those that may,
// takes further ones from the inbox, and writes down what happens before it goes on.
//
// What is done is never repeated, what failed or was stopped goes on from its newest checkpoint when the same command is
// given again. Threads: the event loop's.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/farm/claims.h"
#include "launch/farm/inbox.h"
#include "launch/farm/journal.h"
#include "launch/farm/member.h"
#include "launch/farm/places.h"
#include "launch/farm/read.h"
#include "launch/farm/report.h"
#include "launch/run_folder.h"
#include "launch/stop_requests.h"

namespace convoy {

class FarmSupervisor {
 public:
  // Throws what is wrong with the folder: a pipeline there that was trained with another configuration.
  FarmSupervisor(EventLoop& loop, FarmRun& run, RunFolder folder, Yard yard);
  ~FarmSupervisor();
  FarmSupervisor(const FarmSupervisor&) = delete;
  FarmSupervisor& operator=(const FarmSupervisor&) = delete;

  PlacesEvents events();       // for the places that start() is given
  void start(Places& places);  // which outlive everything but this
  void stop(int signal);       // asked to: the first time in order, the second time at once
  // Nothing can go on here: what runs is ended, now or in order, and the farm ends with `end`.
  void give_up(const FarmEnd& end, bool now);
  bool over() const;
  int finish();  // writes and tells the end; the exit code
  const std::string& folder() const { return folder_.path; }
  Console& console() { return console_; }

 private:
  void add(Pipeline pipeline);
  void resume_added();
  void look_at_folders();
  void look_into_inbox();
  void schedule();
  void begin(const Grant& grant);
  PipelineOrder order_of(const Member& member, int job) const;
  void write_config(const Member& member) const;
  void started(int job, pid_t pid);
  void ended(int job, const ProcessEnd& end, const ResourceSample& used);
  void refused(int job, int exit_code, const std::string& message);
  void over_limit(int job, const std::string& what);
  void settle(int job, const Verdict& verdict);
  void end_it(int job, StopReason why, const std::string& detail);
  void limit_time(int job);
  void note(const Member& member, const std::string& event, const Json& details = Json::object());
  void note_stop();
  void sync_journal();
  void line(int job, const std::string& text);
  void wake_at(double when);
  void tick();
  std::string host_of(const Grant& grant) const;

  EventLoop& loop_;
  FarmRun& run_;
  RunFolder folder_;
  Yard yard_;
  Console console_;
  Journal journal_;
  ResourceLog resources_;
  Inbox inbox_;
  Queue queue_;
  Places* places_ = nullptr;
  std::vector<Member> members_;
  std::map<int, std::unique_ptr<RankLogs>> logs_;  // of those that run
  std::map<std::string, int> starts_before_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  EventLoop::TimerId wake_ = 0;
  StopRequests requests_;
  int stop_signal_ = 0;
  std::optional<FarmEnd> given_up_;
  uint64_t ticks_ = 0;
  bool scheduling_ = false;
  bool stopping_ = false;
};

}  // namespace convoy
