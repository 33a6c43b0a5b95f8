// ProgressEngine: operations that are state machines in this process, and who drives them (mpi, ranks of one host).
//
// Whoever waits polls all operations of the engine; a background thread polls, backing off, only while something is under way
// and nobody waits, so that communication overlaps with computing without stealing the rank's only core. Where operation after
// operation is waited for as soon as it is issued there is nothing for it to do, and it hardly looks: each look of a timer costs
// a light step's core tens of microseconds.
// Threads: thread-safe; operations advance under the engine's lock.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/transport.h"

namespace convoy {

// What the operations of one group share.
struct ProgressGroup {
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string reason;
};

class ProgressOperation {
 public:
  ProgressOperation(std::shared_ptr<ProgressGroup> group, std::vector<at::Tensor> tensors)
      : owner_(std::move(group)), tensors_(std::move(tensors)) {}
  virtual ~ProgressOperation() = default;

  bool over() const { return over_.load(std::memory_order_acquire); }
  bool failed() const { return owner_->failed; }
  void check() const;                       // after over() or failed(): throws what went wrong
  virtual std::string missing() const = 0;  // under the engine's lock

 protected:
  // Starts what can be started, takes what has come. Sets `moved` when anything did; true when all is done.
  virtual bool advance(bool& moved) = 0;

 private:
  friend class ProgressEngine;
  std::shared_ptr<ProgressGroup> owner_;
  std::vector<at::Tensor> tensors_;  // kept until the end
  std::exception_ptr error_;
  std::atomic<bool> over_{false};
  Clock::time_point started_;
  mutable std::atomic<bool> met_{false};  // somebody has come to wait for it
};

class ProgressEngine {
 public:
  explicit ProgressEngine(const char* thread_name);  // at most 15 characters
  virtual ~ProgressEngine();
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  void start(const std::shared_ptr<ProgressOperation>& operation);
  bool poll(const ProgressOperation& operation);  // makes progress; true when it is over or its group failed
  bool wait_until(const ProgressOperation& operation, Clock::time_point deadline);
  std::string missing(const ProgressOperation& operation);
  void fail(ProgressGroup& group, const std::string& reason);

 protected:
  void stop();  // joins the background thread; idempotent
  std::mutex mutex_;

 private:
  bool pass();  // polls every operation once, under the lock; true when anything moved
  void meet(const ProgressOperation& operation);  // one who waits for it
  bool unattended() const;                        // nobody came to wait for what is under way; under the lock
  bool step(ProgressOperation& operation, bool& moved);
  void run_background();

  std::vector<std::shared_ptr<ProgressOperation>> active_;
  std::vector<std::shared_ptr<ProgressOperation>> abandoned_;  // their memory may still be written to
  std::atomic<int> under_way_{0};
  std::atomic<int> waiters_{0};
  std::atomic<int64_t> issued_{0};  // operations that were not over at once
  std::atomic<int> prompt_{0};      // how many of the last of these somebody came to wait for at once

  const char* thread_name_;
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
  std::atomic<bool> asleep_{false};
  bool stop_ = false;
  std::thread background_;
};

// An operation of an engine, which it keeps.
class ProgressPending final : public Pending {
 public:
  ProgressPending(std::shared_ptr<ProgressEngine> engine, std::shared_ptr<ProgressOperation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}

  bool done() override { return engine_->poll(*operation_); }
  bool soon() override { return engine_->wait_until(*operation_, Clock::now() + std::chrono::microseconds(20)); }
  bool wait_until(Clock::time_point deadline) override;
  std::string missing() override { return engine_->missing(*operation_); }

 private:
  std::shared_ptr<ProgressEngine> engine_;
  std::shared_ptr<ProgressOperation> operation_;
};

// "nothing from rank 3", of ranks of a group; "" for none.
std::string nothing_from(const std::vector<int>& ranks);

}  // namespace convoy
