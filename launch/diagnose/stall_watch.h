// StallWatch: detects that a rank waits too long, sends no heartbeat or stays in one position. Then it reports the
// positions of all ranks and the stalled rank.
//
// It receives heartbeats (with positions), slow collectives and lost heartbeats. It reads the state files of ranks with
// which it shares a folder. On a stall it requests positions and stacks from all rank processes
// (core/rank_state/position.h), waits up to `inquiry_patience` for the answers, and makes a diagnosis
// (launch/diagnose/stall_report.h). At half of a time limit it does the same without stacks, and prints a warning.
// Threads: the event loop's.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/config/job_plan.h"
#include "core/control/channel.h"
#include "launch/diagnose/stall_report.h"
#include "launch/process/event_loop.h"

namespace convoy {

inline constexpr std::chrono::milliseconds inquiry_patience{400};

class StallWatch {
 public:
  struct Finding {
    StallDiagnosis diagnosis;
    int64_t step = -1;  // step of the first stalled rank, else of the rank that detected the stall
    std::string table;
    Json json;  // stall_json
  };
  struct Events {
    std::function<void(const std::string&)> on_warning;
    std::function<void(const Finding&)> on_stall;  // called once
  };
  StallWatch(EventLoop& loop, std::shared_ptr<Channel> channel, const LaunchConfig& launch, Events events);

  // Starts watching the ranks of `job`, with state files in `folder`; `hosts` by process.
  void begin(const JobPlan& job, const std::string& folder, std::vector<std::string> hosts);
  void set_rank_info(int rank, const Json& info);           // {host, pid, …} from the rank
  bool posted(const std::string& topic, const Json& body);  // false: a topic of another receiver
  void heartbeat_lost(int rank, double seconds, const std::string& message);
  // Finds ranks that called different collectives, from state files only, after one of the ranks has ended because of
  // that.
  StallDiagnosis mismatch() const;
  std::optional<RankReport> position(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Inquiry {
    int id = 0;
    Stall stall;
    bool limit_exceeded = false;           // false: only a warning
    std::set<int> no_position, no_stacks;  // processes that have not answered, by first rank
    std::map<int, RankReport> reports;
    std::vector<ThreadStack> stacks;
    EventLoop::TimerId timer = 0;
  };
  struct ReceivedReport {
    RankReport report;
    Clock::time_point at;
  };
  void store_reports(const Json& reports);
  void on_slow_collective(const Json& body);
  void inquire(const Stall& stall, bool limit_exceeded);
  void answered();
  void conclude();
  void check_positions();
  std::vector<RankStatus> statuses(const Inquiry* inquiry) const;
  RankStatus status_of(const RankPlan& rank, const Inquiry* inquiry) const;
  bool suspended(int rank) const;
  int first_rank_of(int rank) const;

  EventLoop& loop_;
  std::shared_ptr<Channel> channel_;
  const LaunchConfig launch_;
  Events events_;
  OwnedTasks tasks_;
  std::optional<JobPlan> job_;
  std::string folder_;
  std::optional<Clock::time_point> watched_since_;
  Clock::time_point last_check_;
  std::vector<std::string> hosts_;
  std::map<int, pid_t> local_pids_;  // pids of ranks on this host
  std::map<int, ReceivedReport> reports_;
  std::set<std::pair<std::string, int64_t>> warned_;
  std::optional<Inquiry> inquiry_;
  int next_id_ = 1;
  bool stall_reported_ = false;
};

}  // namespace convoy
