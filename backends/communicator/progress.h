// ProgressEngine: advances operations that are state machines in this process (mpi, shared memory).
//
// A waiting thread polls all operations of the engine. A background thread polls only while an operation is active and
// no thread waits. It backs off, so that communication overlaps computation without occupying the rank's only core. If
// every operation is awaited promptly, the background thread rarely wakes. Each wake-up costs a light step tens of
// microseconds.
// Threads: thread-safe; operations advance under the engine's lock.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/communicator/transport.h"
#include "core/base/error.h"

namespace convoy {

// A range of bytes, in segments; the last may be shorter.
struct Segments {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t segment = 1;  // bytes of a segment
  int64_t count() const { return (bytes + segment - 1) / segment; }
  char* at(int64_t k) const { return data + k * segment; }
  int64_t length(int64_t k) const { return std::min(segment, bytes - k * segment); }
};

// State that the operations of one group share. Any thread.
class ProgressGroup {
 public:
  bool failed() const { return failed_; }
  // Returns false if the group has failed before: the first failure stays.
  bool fail(const CommError& error);
  void check() const;  // throws the failure, if there is one

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<CommError> failure_;
};

class ProgressOperation {
 public:
  ProgressOperation(std::shared_ptr<ProgressGroup> group, std::vector<at::Tensor> tensors)
      : owner_(std::move(group)), tensors_(std::move(tensors)) {}
  virtual ~ProgressOperation() = default;

  bool over() const { return over_.load(std::memory_order_acquire); }
  bool failed() const { return owner_->failed(); }
  void check() const;                       // throws the failure; call it after over() or failed()
  virtual std::string missing() const = 0;  // requires the engine's lock

 protected:
  // Starts and completes transfers without blocking. Sets `moved` if any made progress. Returns true when all is done.
  virtual bool advance(bool& moved) = 0;

 private:
  friend class ProgressEngine;
  std::shared_ptr<ProgressGroup> owner_;
  std::vector<at::Tensor> tensors_;  // kept until the end
  std::exception_ptr error_;
  std::atomic<bool> over_{false};
  Clock::time_point started_;
  mutable std::atomic<bool> awaited_{false};  // some thread has waited for it
};
using ProgressOperationPtr = std::shared_ptr<ProgressOperation>;

class ProgressEngine {
 public:
  explicit ProgressEngine(const char* thread_name);  // at most 15 characters
  virtual ~ProgressEngine();

  void start(const ProgressOperationPtr& operation);
  bool poll(const ProgressOperation& operation);  // makes progress; true if the operation is over or its group failed
  bool wait_until(const ProgressOperation& operation, Clock::time_point deadline);
  std::string missing(const ProgressOperation& operation);
  void fail(ProgressGroup& group, const std::string& reason);

 protected:
  void stop();  // joins the background thread; idempotent
  std::mutex mutex_;

 private:
  bool poll_all();  // polls every operation once, under the lock; true if any made progress
  void count_wait(const ProgressOperation& operation);  // counts the first wait for an operation as prompt or late
  bool has_unawaited() const;  // true if an active operation has had no waiter for too long; under the lock
  bool step(ProgressOperation& operation, bool& moved);
  void run_background();

  std::vector<ProgressOperationPtr> active_;
  std::vector<ProgressOperationPtr> abandoned_;  // peers may still write to their memory
  std::atomic<int> under_way_{0};
  std::atomic<int> waiters_{0};
  std::atomic<int64_t> issued_{0};  // operations that did not complete at once
  std::atomic<int> prompt_{0};      // score of recent prompt waits

  const char* thread_name_;
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::atomic<bool> asleep_{false};  // the background thread sleeps for long: `start` wakes it
  bool stop_ = false;
  std::thread background_;
};

// An operation of an engine; keeps the engine alive.
class ProgressPendingOperation final : public PendingOperation {
 public:
  ProgressPendingOperation(std::shared_ptr<ProgressEngine> engine, ProgressOperationPtr operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}

  bool done() override { return engine_->poll(*operation_); }
  bool soon() override { return engine_->wait_until(*operation_, Clock::now() + std::chrono::microseconds(20)); }
  bool wait_until(Clock::time_point deadline) override;
  std::string missing() override { return engine_->missing(*operation_); }

 private:
  std::shared_ptr<ProgressEngine> engine_;
  ProgressOperationPtr operation_;
};

// Returns "nothing from rank 3"; "" for no ranks. `ranks`: ranks of the group.
std::string nothing_from(const std::vector<int>& ranks);

}  // namespace convoy
