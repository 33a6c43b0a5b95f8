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
#include "backends/transport.h"

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
};

class GroupState {
 public:
  GroupState(GroupFacts facts, std::shared_ptr<Transport> transport);
  ~GroupState();
  const GroupFacts& facts() const { return facts_; }

  // Fails the group here: later and waiting operations throw CommError(peer_lost, reason). The first reason stays.
  void fail(const std::string& reason);
  std::optional<std::string> failure() const;

  // The error of a time limit: names operation, tensor and who is missing, and, where the peers wait in another call of
  // the same number, both calls (Failure::disagreement).
  CommError stalled(const Call& call, int64_t number, double seconds, const std::string& missing) const;
  // Adds to the figures of this group and of all that it was split from.
  void sent(int64_t bytes);
  void waited(int64_t nanoseconds, int64_t cpu_nanoseconds);

  // "rank 1 of 4 (gloo, group world)"
  std::string who() const;

  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> calls{0};  // collectives issued so far: the same number on all ranks is the same call
  std::atomic<int64_t> wait_nanoseconds{0};
  std::atomic<int64_t> wait_cpu_nanoseconds{0};

 private:
  GroupFacts facts_;
  std::weak_ptr<Transport> transport_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

// Sends and receives, which ranks of a group do not issue alike.
bool point_to_point(Operation operation);

// A Work over a Pending. `staging` brings the result back when it is over.
class Staging;
WorkPtr make_work(std::shared_ptr<GroupState> state, std::shared_ptr<Transport> transport, Call call, Staging staging,
                  PendingPtr pending);
// Works of groups of one, and of groups that have failed.
WorkPtr make_finished_work(std::exception_ptr error = nullptr);

}  // namespace convoy
