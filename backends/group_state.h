// GroupState: what a communicator and its works share: who we are, limits, figures, and whether the group still stands.
// Threads: thread-safe. A Work may outlive its communicator, so both hold it.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/abort_board.h"
#include "backends/consistency.h"
#include "backends/transport.h"
#include "core/registry.h"

namespace convoy {

class GroupState;

// What a group is told when it is made.
struct GroupFacts {
  std::string backend;
  std::string label;  // unique within the job: "world", "world/0.1"
  int rank = 0;
  int size = 1;
  at::Device device{at::kCPU};           // where tensors are staged that the transport does not take
  std::chrono::milliseconds timeout{0};  // C
  std::function<void(const char*)> waiting;
  std::shared_ptr<AbortBoard> board;
  std::shared_ptr<Channel> channel;  // may be null
  std::string job;
  std::shared_ptr<GroupState> parent;  // of which it was split; null: the world
  std::vector<int> members;            // ranks of the job, in order of the group's
  std::shared_ptr<CallNotes> notes;    // get every collective; may be null
  CallChecks checks = CallChecks::none;
  std::function<void(const LateCall&)> late;  // null: nobody watches
};

class GroupState : public std::enable_shared_from_this<GroupState> {
 public:
  GroupState(GroupFacts facts, const std::shared_ptr<Transport>& transport);
  ~GroupState();
  const GroupFacts& facts() const { return facts_; }

  // Fails the group here: later and waiting operations throw that error; of a reason, CommError(peer_lost). The first one
  // stays.
  void fail(const std::string& reason);
  void fail(const CommError& error);
  std::optional<CommError> failure() const;

  // Under `issue`: gives a collective its number and hash, and notes it. Returns the number, 0 for sends and receives.
  int64_t called(Call& call);
  CallCheck* check() { return check_.get(); }  // null where nothing is compared here
  std::mutex issue;                            // held while an operation is handed to the transport

  bool watched() const { return facts_.late != nullptr; }
  // Sends a question to the process that serves the control channel; becomes true with the answer. Null: nobody to ask.
  std::shared_ptr<std::atomic<bool>> ask_supervisor() const;
  void late(const Call& call, double seconds, bool over) const;  // where somebody watches

  // The error of a time limit: names operation, tensor and who is missing, and, where the peers wait in another call of
  // the same number, both calls (Failure::disagreement).
  CommError stalled(const Call& call, double seconds, const std::string& missing) const;
  // Adds to the figures of this group and of all that it was split from.
  void sent(int64_t bytes);
  void waited(int64_t nanoseconds, int64_t cpu_nanoseconds);

  // The rank of the job that is `rank` in this group; -1 for none.
  int of_job(int rank) const {
    return rank < 0 || rank >= facts_.size ? -1 : facts_.members[static_cast<size_t>(rank)];
  }
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
  int64_t calls_ = 0;  // collectives issued so far: the same number on all ranks is the same call
  int place_ = -1;     // in the state file
  std::unique_ptr<CallCheck> check_;
};

// A Work over a Pending. `staging` brings the result back when it is over.
class Staging;
WorkPtr make_work(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport, Call call, Staging staging,
                  PendingPtr pending);
// Works of groups of one, and of groups that have failed.
WorkPtr make_finished_work(std::exception_ptr error = nullptr);

}  // namespace convoy
