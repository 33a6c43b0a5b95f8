// GroupState: state of a communicator and its works: identity, time limits, counters, and the failure of the group.
// Threads: thread-safe. Ownership: a Work may outlive its communicator, so both hold the state.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/communicator/collective_check.h"
#include "backends/communicator/transport.h"
#include "core/backend.h"
#include "core/control/channel.h"

namespace convoy {

// AbortNotifier: sends a group's abort to its peers, and the end of the job to every group, over the control channel.
// One per rank, shared by the world and all groups split from it.
// Threads: thread-safe. Handlers run on the channel's thread.
class AbortNotifier : public std::enable_shared_from_this<AbortNotifier> {
 public:
  using Handler = std::function<void(const std::string& reason)>;  // must not block or throw

  // `channel` may be null; the notifier then does nothing.
  static std::shared_ptr<AbortNotifier> create(std::shared_ptr<Channel> channel, const std::string& job);

  // Calls `handler` when any rank aborts the group or the job ends. Calls it at once if that has already happened.
  void add(const std::string& group, Handler handler);
  void remove(const std::string& group);  // no handler runs after it returns
  // Sends the abort to the peers. Never throws.
  void notify_peers(const std::string& group, const std::string& reason);

 private:
  AbortNotifier(std::shared_ptr<Channel> channel, const std::string& job);
  void on_key(const std::string& key, const std::string& reason);
  void on_end(const std::string& reason);

  std::shared_ptr<Channel> channel_;
  std::string prefix_;
  std::mutex mutex_;
  std::map<std::string, Handler> handlers_;     // by group
  std::map<std::string, std::string> aborted_;  // reason by group
  std::optional<std::string> ended_;
};

class GroupState;

// Facts of a group, fixed at its creation: the request's, with rank and size in the group.
struct GroupFacts : BackendRequest {
  std::string backend = {};
  std::string label = {};  // unique within the job: "world", "world/0.1"
  std::shared_ptr<AbortNotifier> abort_notifier = {};
  std::shared_ptr<GroupState> parent = {};  // the group from which it was split; null: the world
  std::vector<int> members = {};            // ranks of the job, in order of the group's ranks
};

class GroupState : public std::enable_shared_from_this<GroupState> {
 public:
  GroupState(GroupFacts facts, const std::shared_ptr<Transport>& transport);
  ~GroupState();
  const GroupFacts& facts() const { return facts_; }

  // Fails the group on this rank: waiting and later operations throw the error. A reason becomes CommError(peer_lost).
  // Only the first failure counts.
  void fail(const std::string& reason);
  void fail(const CommError& error);
  std::optional<CommError> failure() const;

  // Requires `issue`. Gives a collective its number and hash and records it. Returns the number; 0 for sends and
  // receives.
  int64_t record_call(Call& call);
  CollectiveTimes* times() { return times_.get(); }  // null: the times of collectives are not measured
  CollectiveCheck* check() { return check_.get(); }  // null: collectives are not checked
  std::mutex issue;                                  // guards the start of operations

  bool has_stall_reporter() const { return facts_.slow_collective != nullptr; }
  // Sends a request to the supervisor. The returned flag becomes true with the answer. Null: there is no supervisor.
  std::shared_ptr<std::atomic<bool>> ask_supervisor() const;
  void report_slow(const Call& call, double seconds, bool over) const;  // requires has_stall_reporter()

  // Returns the error of a time limit: operation, tensor and missing ranks. If peers wait in a different call of the
  // same number, it names both calls (Failure::disagreement).
  CommError time_limit_error(const Call& call, double seconds, const std::string& missing) const;
  // Counts for this group and for all groups from which it was split.
  void add_bytes_sent(int64_t bytes);
  void add_wait(int64_t nanoseconds, int64_t cpu_nanoseconds);

  // Returns the job's rank for rank `rank` of this group; -1 for none.
  int job_rank_of(int rank) const { return rank < 0 || rank >= facts_.size ? -1 : facts_.members[size_t(rank)]; }
  // "rank 1 of 4 (gloo, group world)"
  std::string who() const;

  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> wait_nanoseconds{0};
  std::atomic<int64_t> wait_cpu_nanoseconds{0};

 private:
  GroupFacts facts_;
  std::weak_ptr<Transport> transport_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<CommError> failure_;
  int64_t calls_ = 0;     // collectives issued so far; the same number on all ranks is the same call
  int group_index_ = -1;  // index of the group in the state file
  std::shared_ptr<CollectiveTimes> times_;
  std::unique_ptr<CollectiveCheck> check_;
};

// Creates a Work for an operation. `staging` copies the result back at the end.
class Staging;
WorkPtr make_work(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport, Call call, Staging staging,
                  PendingOperationPtr pending);
// Creates a finished Work, for groups of one and failed groups.
WorkPtr make_finished_work(std::exception_ptr error = nullptr);

}  // namespace convoy
