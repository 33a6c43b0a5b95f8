// Reports the positions of this process's ranks: with each heartbeat, and with stacks on request of the supervisor.
//
// Threads: thread-safe. The channel's thread answers, also while every rank of the process is stalled.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "api/thread_stacks.h"
#include "core/backend.h"
#include "core/control/channel.h"
#include "core/registry.h"

namespace convoy {

class StallReporter : public std::enable_shared_from_this<StallReporter> {
 public:
  // `first`: the process's first rank.
  static std::shared_ptr<StallReporter> create(std::shared_ptr<Channel> channel, int first);

  // Call it from the rank's thread; a second call moves the rank to another thread.
  void add(int rank, std::shared_ptr<const CollectiveRecords> records);

  // Reports a slow collective of `rank` (BackendRequest::slow_collective). After its time limit, waits for the
  // supervisor's diagnosis and throws CommError(peer_lost) with it. Returns if the supervisor does not abort in time.
  void report(int rank, const SlowCollective& call);

 private:
  struct Rank {
    RankThreadId id;
    std::shared_ptr<const CollectiveRecords> records;
  };
  // Has no reference to the channel. The channel's thread uses this object with each heartbeat, and could not end the
  // channel if it held the last reference to it.
  struct Ranks {
    std::mutex mutex;
    std::vector<Rank> all;
    Json reports();
  };

  StallReporter(std::shared_ptr<Channel> channel, int first) : channel_(std::move(channel)), first_(first) {}
  void answer(const Json& inquiry);

  std::shared_ptr<Channel> channel_;
  const int first_;
  const std::shared_ptr<Ranks> ranks_ = std::make_shared<Ranks>();
};

}  // namespace convoy
