// CollectiveCheck: compares the collectives of the ranks of one group over the control channel.
//
// The first calls of a group are deferred, and all calls under CollectiveChecks::all. Each rank reports the call's
// hash. The operation starts only when all hashes have arrived and are equal, and sent and expected counts match. So a
// transport gets only calls of equal sizes; gloo would end the process for others. The call does not block: the
// channel's thread starts deferred operations in order, and Work::wait blocks as it does without a check.
//
// Later calls start at once. At intervals the ranks compare the hash of all calls since the last comparison, without
// waiting for the result. The intervals grow with the number of calls, so the whole check costs some hundred messages.
// On a mismatch the ranks exchange descriptions of their calls, and the group fails with CommError(disagreement).
//
// Threads: must_defer and defer require GroupState::issue; fail may run on any thread.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/communicator/transport.h"
#include "core/backend.h"
#include "core/base/error.h"
#include "core/control/channel.h"

namespace convoy {

class GroupState;

// Number of first calls of each group that are deferred.
inline constexpr int64_t checked_at_first = 64;
// True if the ranks compare their calls at call `number`, after the first ones.
bool compared_at(int64_t number);

// An operation that has not started.
struct DeferredCall;

class CollectiveCheck {
 public:
  CollectiveCheck(GroupState& state, SupervisedChannel& channel);
  ~CollectiveCheck();

  // Returns false if the call may start now. Call it once for each collective of the group.
  bool must_defer(const Call& call);
  // Runs `issue` once, here or on the channel's thread; never if the group fails first.
  PendingOperationPtr defer(const Call& call, std::function<PendingOperationPtr(const Call&)> issue);
  void fail(const CommError& error);

 private:
  struct CollectiveReport {
    uint64_t hash = 0, balance = 0;  // as in Call, for one call or several
  };
  // `counts`: the result of describe_counts.
  void send_report(int64_t number, const CollectiveReport& report, const std::string& text, const std::string& counts);
  void compare_reports(int64_t number, const std::string& text, const std::string& counts,
                       const std::vector<std::string>& reports);
  static std::string as_bytes(const CollectiveReport& report);
  static CollectiveReport from_bytes(const std::string& bytes);
  void report_mismatch(int64_t number, const std::vector<std::string>& texts);
  void begin_agreed();  // requires GroupState::issue

  GroupState& state_;
  SupervisedChannel* const channel_;  // the group keeps it alive
  const std::string key_;
  CollectiveReport sum_;     // reports since the last comparison
  int64_t summed_from_ = 1;  // number of the first call in sum_
  int64_t agreed_ = 0;       // all calls up to this number match; guarded by mutex_, like the members below
  std::mutex mutex_;
  std::deque<std::unique_ptr<DeferredCall>> deferred_;  // calls that have not started, by number
};

}  // namespace convoy
