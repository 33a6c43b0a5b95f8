// ChannelStore: what a control channel remembers and how its operations act on it, without any transport. The server
// holds one for its connections, the local channel one for its threads, so that both mean the same.
//
// Threads: none of its own; the owner serialises calls. Callbacks are called from inside the call that caused them and
// must not call back.
// Failure: Error(internal) for misuse (a counter that is no number, two votes of one participant).
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/control/channel.h"

namespace convoy {

// How a waiting operation ended.
struct Outcome {
  enum class Kind { done, timeout, aborted } kind = Kind::done;
  std::vector<std::string> values;  // one for get, one per participant for agree
  std::vector<int> missing;         // participants that have not voted, for agree's timeout
  std::optional<Abort> reason;      // of the abort
};

// Now + timeout; a timeout beyond a year counts as one.
std::chrono::steady_clock::time_point deadline_after(Timeout timeout);

// The values, or what `get` and `agree` throw: the same words over every transport. `what` is "get 'job'".
std::vector<std::string> values_or_throw(Outcome outcome, const std::string& what, Timeout waited);

class ChannelStore {
 public:
  using Waiter = std::pair<uint64_t, uint64_t>;  // (owner, request)
  using Reply = std::function<void(Outcome)>;
  using Watch = std::function<void(const std::string& key, const std::string& value)>;

  void set(const std::string& key, const std::string& value);
  std::optional<std::string> peek(const std::string& key) const;
  int64_t add(const std::string& key, int64_t delta);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool erase(const std::string& key);

  // Replies at once or later, once; never after `forget`.
  void get(Waiter waiter, const std::string& key, Reply reply);
  // `again`: the name is free again once all have voted.
  void agree(Waiter waiter, const std::string& name, int participant, int count, const std::string& value, bool again,
             Reply reply);
  void cancel(Waiter waiter);  // replies `timeout` unless it has replied
  void watch(uint64_t owner, const std::string& prefix, Watch callback);
  void forget(uint64_t owner);  // its waits and watches; its votes and values stay

  enum class Verdict { first, replaced, ignored };
  // `replaced`: a peer_lost stood there and this is a cause. Wakes all waits the first time.
  Verdict abort(const Abort& reason);
  const std::optional<Abort>& aborted() const { return abort_; }

 private:
  struct Agreement {
    int count = 0;
    std::map<int, std::string> votes;
    std::map<Waiter, Reply> waiting;
    bool complete = false;  // kept, without its values, so that a name is used once
  };
  struct Watching {
    uint64_t owner;
    std::string prefix;
    Watch callback;
  };
  std::map<std::string, std::string> values_;
  std::map<std::string, std::map<Waiter, Reply>> gets_;
  std::map<std::string, Agreement> agreements_;
  std::map<Waiter, std::string> where_;  // key or name that a waiter waits for
  std::vector<Watching> watches_;
  std::optional<Abort> abort_;
};

}  // namespace convoy
