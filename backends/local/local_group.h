// LocalGroup: the group of ranks that are threads of one process. Each operation is a LocalOperation: every rank
// deposits its tensors. Once all have done so, the waiting ranks share the work (sums and copies, in tasks).
//
// Threads: thread-safe. It has no thread: a rank works while it waits. A rank that computes is not interrupted; the
// other ranks read and write its tensors. An operation without a waiting rank makes no progress.
// Failure: a rank that leaves, an abort, or a mismatch fails all incomplete operations. Operations with all deposits
// finish. So no tensor is touched after its owner has seen the failure.
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

#include "backends/communicator/transport.h"
#include "core/base/error.h"

namespace convoy {

// The arguments of one rank.
struct Deposit {
  Call call;
  at::Tensor input{}, output{};  // all_reduce and broadcast use only output
  Offsets input_bounds{}, output_bounds{};
  ReduceOp op = ReduceOp::sum;
  int root = 0;
};

class LocalOperation {
 public:
  enum class Phase { open, working, over, failed };

  explicit LocalOperation(int expected) : deposits_(expected), participants_(size_t(expected)) {}
  Phase phase() const { return phase_; }

 private:
  friend class LocalGroup;
  bool help(size_t index);
  std::string prepare();  // checks all deposits and creates the tasks; returns the mismatch, if any
  void assign_tasks();
  void copy(void* to, const void* from, int64_t bytes);  // adds the tasks of one copy
  void prepare_reduction();
  void conclude(Phase phase);
  std::string differences() const;  // "" if the calls match

  std::vector<std::optional<Deposit>> deposits_;
  std::vector<std::function<void()>> tasks_;
  int64_t count_ = 0;  // number of tasks; tasks_ itself is cleared at the end
  // Each participant has a range of the tasks. So a rank touches the same share of equal tensors each time, which is
  // then in its cache. A participant that has finished its range takes tasks from other ranges.
  struct TaskRange {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::unique_ptr<TaskRange[]> ranges_;
  size_t participants_;
  std::atomic<int64_t> finished_{0};
  std::atomic<Phase> phase_{Phase::open};
  std::exception_ptr error_;  // set before the phase becomes failed
};

class LocalGroup {
 public:
  explicit LocalGroup(int size);
  int size() const { return size_; }

  // Blocks until all ranks have joined; CommError(rendezvous) lists the missing ranks.
  void join(int rank, Clock::time_point deadline);
  void leave(int rank);

  // Identifies an operation: a collective by its number; a message by sender, receiver and its number.
  using Key = std::tuple<int, int, int64_t>;
  static Key collective(int64_t number) { return {-1, -1, number}; }
  // `index`: this rank's index in `ranks`, which are the participants.
  std::shared_ptr<LocalOperation> join_operation(const Key& key, size_t index, const std::vector<int>& ranks,
                                                 Deposit deposit);
  // Runs the remaining tasks without waiting. Returns true if the operation is over or has failed.
  bool help(LocalOperation& operation, size_t index);
  // Returns false at the deadline; throws the operation's failure.
  bool wait(LocalOperation& operation, size_t index, Clock::time_point deadline);
  std::string missing(LocalOperation& operation);

  void fail(const std::string& reason);
  // Returns the same memory to each rank of the group. `number` identifies the allocation.
  at::Tensor common_memory(int64_t number, int64_t bytes);
  // Returns the sub-group with that label, the same object for each of its ranks.
  std::shared_ptr<LocalGroup> child(const std::string& label, int size);

 private:
  struct Open {
    std::shared_ptr<LocalOperation> operation;
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
  std::map<int64_t, Common> common_memories_;  // memory that not all ranks have taken yet
};

}  // namespace convoy
