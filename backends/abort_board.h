// AbortBoard: carries a group's abort to its peers, and the end of the whole job to every group, over the control
// channel. One per rank, shared by the world and all groups split from it.
// Threads: thread-safe. The channel calls back from its own thread.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/control/channel.h"

namespace convoy {

class AbortBoard : public std::enable_shared_from_this<AbortBoard> {
 public:
  using Handler = std::function<void(const std::string& reason)>;  // must not block nor throw

  // channel: may be null, and then nothing is carried.
  static std::shared_ptr<AbortBoard> create(std::shared_ptr<Channel> channel, const std::string& job);

  // Calls `handler` when the group is aborted anywhere or the job ends; at once, if it already was.
  void add(const std::string& group, Handler handler);
  void remove(const std::string& group);  // no call is under way once it returns
  // Tells the peers. Never throws.
  void tell(const std::string& group, const std::string& reason);

 private:
  AbortBoard(std::shared_ptr<Channel> channel, const std::string& job);
  void on_key(const std::string& key, const std::string& reason);
  void on_end(const std::string& reason);

  std::shared_ptr<Channel> channel_;
  std::string prefix_;
  std::mutex mutex_;
  std::map<std::string, Handler> handlers_;     // by group
  std::map<std::string, std::string> aborted_;  // reason by group
  std::optional<std::string> ended_;
};

}  // namespace convoy
