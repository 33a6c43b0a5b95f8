// LocalGroup: where the ranks of one process meet. Each operation is a Meeting: every rank puts down its tensors, and
// once all are there the work (adding, copying, cut into tasks) belongs to whoever waits for it.
//
// Threads: thread-safe. No thread of its own: a rank that waits works; one that computes is not disturbed, and its
// tensors are read and written by the others. An operation that nobody waits for is not worked at.
// Failure: a rank that leaves, an abort, or calls that do not fit each other fail the meetings that are not complete;
// complete ones are finished, so no tensor is touched after its owner was told.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/transport.h"
#include "core/error.h"

namespace convoy {

// What one rank puts down.
struct Deposit {
  Call call;
  at::Tensor input{}, output{};  // as the operation has them; all_reduce and broadcast: output
  Offsets input_parts{}, output_parts{};
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

class Meeting {
 public:
  enum class Phase { open, working, over, failed };

  explicit Meeting(int expected) : deposits_(expected), places_(static_cast<size_t>(expected)) {}
  Phase phase() const { return phase_; }

 private:
  friend class LocalGroup;
  bool help(size_t place);
  std::string prepare();  // all are there: check and cut into tasks; what differs
  void share_out();
  void copy(void* to, const void* from, int64_t bytes);  // adds the tasks of one copy
  void prepare_reduction();
  void conclude(Phase phase);
  std::string differences() const;  // "" when the calls fit each other

  std::vector<std::optional<Deposit>> deposits_;
  std::vector<std::function<void()>> tasks_;
  int64_t count_ = 0;  // of tasks; tasks_ itself is emptied at the end
  // Each place has a stretch of the tasks, so that a rank touches the same part of equal tensors each time, which its
  // cache then holds; who is through with its own takes from the others'.
  struct Stretch {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::unique_ptr<Stretch[]> stretches_;
  size_t places_;
  std::atomic<int64_t> finished_{0};
  std::atomic<Phase> phase_{Phase::open};
  std::exception_ptr error_;  // set before the phase becomes failed
};

class LocalGroup {
 public:
  explicit LocalGroup(int size);
  int size() const { return size_; }

  // Blocks until all ranks are here; CommError(rendezvous) lists who is missing.
  void join(int rank, Clock::time_point deadline);
  void leave(int rank);

  // Which meeting: collectives by their number; transfers by sender, receiver and their number.
  using Key = std::tuple<int, int, int64_t>;
  static Key collective(int64_t number) { return {-1, -1, number}; }
  // `place`: this rank's in the meeting; `ranks`: those who take part, by place.
  std::shared_ptr<Meeting> meet(const Key& key, size_t place, const std::vector<int>& ranks, Deposit deposit);
  // `place`: the caller's in the meeting. Does what is left to do, without waiting; true when the meeting is over or has
  // failed.
  bool help(Meeting& meeting, size_t place);
  // False when the deadline passed first; throws what the meeting failed with.
  bool wait(Meeting& meeting, size_t place, Clock::time_point deadline);
  std::string missing(Meeting& meeting);

  void fail(const std::string& reason);
  // The same memory for each of its ranks, which take it one after the other, by number.
  at::Tensor common_memory(int64_t number, int64_t bytes);
  // The sub-group of that label, the same object for each of its members.
  std::shared_ptr<LocalGroup> child(const std::string& label, int size);

 private:
  struct Open {
    std::shared_ptr<Meeting> meeting;
    std::vector<int> ranks;
  };
  void fail_open(const std::function<bool(const Open&)>& which, const CommError& error);
  void wake();

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
  std::map<Key, Open> open_;
  std::vector<bool> joined_, left_;
  std::optional<CommError> failed_;
  std::map<std::string, std::weak_ptr<LocalGroup>> children_;
  struct Common {
    at::Tensor memory;
    int taken = 0;
  };
  std::map<int64_t, Common> commons_;  // that not all ranks have yet
};

}  // namespace convoy
