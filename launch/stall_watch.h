// StallWatch: finds out where all ranks are when one of them waits too long, falls silent or stays in one place, prints it
// as one table, and says who is to blame.
//
// What it is told: heartbeats (with positions), late waits, lost heartbeats; what it reads: state files of ranks whose folder
// it shares. On a stall it asks all rank processes for positions and stacks (core/control/position.h), waits for answers as
// long as `inquiry_patience`, and judges (launch/hang_table.h). Warnings, at half of a time limit, go the same way without
// stacks, and leave the ranks undisturbed.
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

#include "core/config/run_config.h"
#include "core/control/channel.h"
#include "core/plan.h"
#include "launch/event_loop.h"
#include "launch/hang_table.h"

namespace convoy {

inline constexpr std::chrono::milliseconds inquiry_patience{400};

class StallWatch {
 public:
  struct Found {
    StallVerdict verdict;
    int64_t step = -1;  // of the first to blame, else of who noticed
    std::string table;
    Json json;  // hang_json
  };
  struct Events {
    std::function<void(const std::string&)> on_warning;
    std::function<void(const Found&)> on_stall;  // once
  };
  StallWatch(EventLoop& loop, std::shared_ptr<Channel> channel, const LaunchConfig& launch, Events events);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // The ranks of `job`, whose state files are in `folder`; `hosts` by process.
  void begin(const Job& job, const std::string& folder, std::vector<std::string> hosts);
  void know(int rank, const Json& info);                    // {host, pid, …} as the rank tells it
  bool posted(const std::string& topic, const Json& body);  // false: not for this one
  void silent(int rank, double seconds, const std::string& message);
  // Ranks that called different things, by their state files alone; for when one of them has died of it.
  StallVerdict difference() const;
  std::optional<RankReport> position(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Inquiry {
    int id = 0;
    Stall stall;
    bool over = false;                             // not only a warning
    std::set<int> asked, told_where, told_stacks;  // processes, by first rank
    std::map<int, RankReport> reports;
    std::vector<ThreadStack> stacks;
    EventLoop::TimerId timer = 0;
  };
  struct Heard {
    RankReport report;
    Clock::time_point at;
  };
  void heard(const Json& reports);
  void late(const Json& body);
  void inquire(const Stall& stall, bool over);
  void answered();
  void conclude();
  void check_places();
  std::vector<RankPlace> places(const Inquiry* inquiry) const;
  RankPlace place_of(const RankPlan& rank, const Inquiry* inquiry) const;
  bool suspended(int rank) const;
  int first_rank_of(int rank) const;

  EventLoop& loop_;
  std::shared_ptr<Channel> channel_;
  const LaunchConfig launch_;
  Events events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<Job> job_;
  std::string folder_;
  double step_timeout_ = 0;  // 0: off
  std::optional<Clock::time_point> watched_since_;
  Clock::time_point last_look_;
  std::vector<std::string> hosts_;
  std::map<int, pid_t> here_;  // pids of ranks of this host
  std::map<int, Heard> heard_;
  std::set<std::pair<std::string, int64_t>> warned_;
  std::optional<Inquiry> inquiry_;
  int next_id_ = 1;
  bool over_ = false;
};

}  // namespace convoy
