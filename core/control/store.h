// ControlStore: the keys and values of a control channel, and the operations on them, without transport.
//
// Threads: has none; the owner serialises calls. Callbacks run inside the call that caused them and must not call back.
// Errors: Error(internal) for misuse, such as a counter that is no number or two values of one participant.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/control/channel.h"

namespace convoy {

// Result of a waiting operation.
struct Outcome {
  enum class Kind { done, timeout, aborted } kind = Kind::done;
  std::vector<std::string> values;  // one for get, one per participant for agree
  std::vector<int> missing;         // participants without a value, if `agree`, or `get` of a vote, has timed out
  std::optional<Abort> reason;      // reason of the abort
};

// Returns now + timeout; at most one year.
std::chrono::steady_clock::time_point deadline_after(Timeout timeout);

// Returns the values, or throws the errors of `get` and `agree`, with the same texts for every transport. `what`: the
// operation, such as "get 'job'".
std::vector<std::string> values_or_throw(Outcome outcome, const std::string& what, Timeout waited);

class ControlStore {
 public:
  using Waiter = std::pair<uint64_t, uint64_t>;  // (owner, request)
  using Reply = std::function<void(Outcome)>;
  using Watch = std::function<void(const std::string& key, const std::string& value)>;

  void set(const std::string& key, const std::string& value);
  std::optional<std::string> peek(const std::string& key) const;
  int64_t add(const std::string& key, int64_t delta);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);
  bool erase(const std::string& key);

  // Replies once, at once or later; never after `forget`.
  void get(Waiter waiter, const std::string& key, Reply reply);
  // `again`: the name is free again after all have given a value.
  void agree(Waiter waiter, const std::string& name, int participant, int count, const std::string& value, bool again,
             Reply reply);
  void vote(const std::string& name, int participant, int count, int64_t value);
  void cancel(Waiter waiter);  // replies `timeout` if it has not replied
  void watch(uint64_t owner, const std::string& prefix, Watch callback);
  void forget(uint64_t owner);  // drops its waits and watches; its values stay

  // `replaced`: this reason is the cause and replaced an earlier peer_lost.
  enum class AbortOutcome { first, replaced, ignored };
  // The first call ends all waits.
  AbortOutcome abort(const Abort& reason);
  const std::optional<Abort>& aborted() const { return abort_; }

 private:
  struct Consensus {
    int count = 0;
    std::map<int, std::string> votes;
    bool full() const { return static_cast<int>(votes.size()) == count; }
    bool complete = false;  // the values are freed; the entry stays so that a name is used once
  };
  using WaitKey = std::pair<bool, std::string>;  // false and the key of a get, or true and the name of an agreement
  struct Wait {
    Waiter waiter;
    Reply reply;
  };
  // Throws if `participant` is not in [0, count), or has given a value already.
  Consensus& add_value(const std::string& name, int participant, int count, const std::string& value);
  void reply_all(const WaitKey& key, const Outcome& outcome);  // ends all these waits

  std::map<std::string, std::string> values_;
  std::map<std::string, Consensus> agreements_;
  std::multimap<WaitKey, Wait> waits_;
  std::map<std::string, std::multimap<uint64_t, Watch>> watches_;  // by prefix and owner: thousands share few prefixes
  std::optional<Abort> abort_;
};

}  // namespace convoy
