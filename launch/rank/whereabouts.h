// Tells where this process's ranks are: with each heartbeat, and with stacks when whoever serves asks.
//
// Threads: thread-safe; answers come from the channel's own thread, so also while every rank of the process is stuck.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "core/control/channel.h"
#include "core/registry.h"
#include "launch/rank/own_stacks.h"

namespace convoy {

class Whereabouts : public std::enable_shared_from_this<Whereabouts> {
 public:
  // `first`: the process's first rank.
  static std::shared_ptr<Whereabouts> create(std::shared_ptr<Channel> channel, int first);

  // From the rank's own thread; a second call moves it to another one.
  void add(int rank, std::shared_ptr<const CallNotes> notes);

  // A wait of `rank` takes long (BackendRequest::late). When its limit has passed this waits until the job is ended for
  // whatever reason was found, and throws CommError(peer_lost) with it; it returns when nobody has found one.
  void late(int rank, const LateCall& call);

 private:
  Whereabouts(std::shared_ptr<Channel> channel, int first) : channel_(std::move(channel)), first_(first) {}
  Json reports();
  void answer(const Json& inquiry);

  struct Rank {
    RankThreadId id;
    std::shared_ptr<const CallNotes> notes;
  };
  std::shared_ptr<Channel> channel_;
  const int first_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
};

}  // namespace convoy
