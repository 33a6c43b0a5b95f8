// CallCheck: whether the ranks of one group call the same collectives, found out over the control channel beside the data.
//
// The first calls of a group are held back: each rank tells the call's hash, and hands the operation to the transport only
// once all hashes are there and equal, and what ranks send each other is what they expect. So a transport that cannot bear different sizes (gloo ends the process) never sees
// them. Nobody waits where it calls: an operation that is held back is begun by the channel's thread, in order, and what
// blocks is Work::wait, as without a check. Later calls go straight through; now and then the hash of all since the last
// time is compared, of which nobody waits for the outcome. Intervals grow with the number of calls, so the whole cost is
// bounded by some hundred messages.
// On a difference the ranks tell each other their calls, and the group fails with CommError(disagreement).
//
// Threads: holds_back and begin_later under GroupState::issue; fail from any.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/transport.h"
#include "core/control/supervised_channel.h"
#include "core/error.h"
#include "core/registry.h"

namespace convoy {

class GroupState;

// Calls of each group that are held back, in order of numbers from 1.
inline constexpr int64_t checked_at_first = 64;
// Whether calls up to `number` are compared at this one, past the first.
bool compared_at(int64_t number);

// The end of an operation that may not have been begun.
class HeldBack;

class CallCheck {
 public:
  CallCheck(GroupState& state, SupervisedChannel& channel);
  ~CallCheck();
  CallCheck(const CallCheck&) = delete;
  CallCheck& operator=(const CallCheck&) = delete;

  // False: the call may begin now. To be asked once for each collective of the group.
  bool holds_back(const Call& call);
  // `issue` is called once, here or on the channel's thread, or never where the group fails first.
  PendingPtr begin_later(const Call& call, std::function<PendingPtr(const Call&)> issue);
  void fail(const CommError& error);

 private:
  struct Vote {
    uint64_t hash = 0, balance = 0;  // as in Call, of one call or of several
  };
  // `between`: described_between.
  void tell(int64_t number, const Vote& vote, const std::string& text, const std::string& between);
  void told(int64_t number, const std::string& text, const std::string& between, const std::vector<std::string>& votes);
  static std::string as_bytes(const Vote& vote);
  static Vote from_bytes(const std::string& bytes);
  void differ(int64_t number, const std::vector<std::string>& texts);
  void begin_agreed();  // under GroupState::issue

  GroupState& state_;
  SupervisedChannel* const channel_;  // the group's, which outlives it
  const std::string key_;
  Vote sum_;                 // since the last comparison
  int64_t summed_from_ = 1;  // the first of them
  int64_t agreed_ = 0;       // calls up to here are alike; guarded by mutex_, as what follows
  std::mutex mutex_;
  std::deque<std::pair<int64_t, std::shared_ptr<HeldBack>>> held_;  // not begun, by number
};

}  // namespace convoy
