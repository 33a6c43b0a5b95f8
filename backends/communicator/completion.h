// Completion: the end of an operation that another library's threads run (gloo).
//
// It keeps the operation's tensors until the end. A waiting thread sleeps until the end, a deadline, or the failure of
// the group.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/communicator/transport.h"

namespace convoy {

// DeadlineWatch: reports operations on a device that miss their deadline while no host thread waits for them.
//
// Threads: thread-safe; owns one thread, which polls every 50 ms. The destructor drops all operations that it follows.
class DeadlineWatch {
 public:
  explicit DeadlineWatch(std::function<void()> on_start = {});  // runs first in its thread
  ~DeadlineWatch();

  // Polls `ended` until it returns true. At `deadline`, or if `ended` throws, calls `late` once and stops polling. Both
  // run on the watch's thread; `ended` must not block.
  void follow(std::function<bool()> ended, Clock::time_point deadline, std::function<void()> late);

 private:
  struct Followed {
    std::function<bool()> ended;
    Clock::time_point deadline;
    std::function<void()> late;
  };
  void run(const std::function<void()>& on_start);
  static bool over(Followed& one);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Followed> fresh_;  // not polled yet
  bool stop_ = false;
  std::thread thread_;
};

// Failure signal that the completions of one group share. Copies share it too.
class CompletionSignal {
 public:
  void fail(const std::string& reason);
  bool busy() const;  // some operation has not finished

 private:
  friend class Completion;
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<std::string> failure;
    int unfinished = 0;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

class Completion {
 public:
  Completion(CompletionSignal signal, std::vector<at::Tensor> tensors);
  void finish(std::exception_ptr error);  // called by the library's thread; drops the tensors
  bool done();                            // true if it is finished, or the group failed
  // Returns false at the deadline; throws CommError(peer_lost).
  bool wait_until(Clock::time_point deadline);

 private:
  CompletionSignal signal_;
  std::vector<at::Tensor> tensors_;
  bool finished_ = false;
  std::exception_ptr error_;
};

// Waits for several completions, then runs `after` in the waiting thread.
class CompletionPendingOperation final : public PendingOperation {
 public:
  explicit CompletionPendingOperation(std::function<void()> after = {}) : after_(std::move(after)) {}
  void add(std::shared_ptr<Completion> completion) { completions_.push_back(std::move(completion)); }
  bool done() override;
  bool wait_until(Clock::time_point deadline) override;

 private:
  std::function<void()> after_;
  std::vector<std::shared_ptr<Completion>> completions_;
};

// Threads for blocking waits: one per concurrent job, reused by later jobs.
class WaiterPool {
 public:
  ~WaiterPool();  // blocks until all jobs end
  void run(std::function<void()> job);

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  size_t idle_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace convoy
