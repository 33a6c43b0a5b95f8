// Completion: the end of an operation that another library's threads carry out (gloo).
//
// It keeps the operation's tensors until the end, and lets a waiter sleep until the end, a deadline, or the failure of
// the whole group.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backends/transport.h"

namespace convoy {

// What the completions of one group share: a copy is the same signal.
class CompletionSignal {
 public:
  void fail(const std::string& reason);
  bool failed() const;
  bool busy() const;  // an operation has not finished

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
  void finish(std::exception_ptr error);  // from the library's thread; tensors are dropped here
  bool done();                            // finished, or the group failed
  // False when the deadline passed first; throws CommError(peer_lost).
  bool wait_until(Clock::time_point deadline);

 private:
  CompletionSignal signal_;
  std::vector<at::Tensor> tensors_;
  bool finished_ = false;
  std::exception_ptr error_;
};

// All of several completions; `after` then runs in the waiting thread.
class CompletionPending final : public Pending {
 public:
  explicit CompletionPending(CompletionSignal signal, std::function<void()> after = {});
  void add(std::shared_ptr<Completion> completion);
  bool done() override;
  bool wait_until(Clock::time_point deadline) override;

 private:
  CompletionSignal signal_;
  std::function<void()> after_;
  std::vector<std::shared_ptr<Completion>> completions_;
};

// Threads for what can only be waited for: as many as there are jobs at once, kept for the next ones.
class WaiterPool {
 public:
  ~WaiterPool();  // jobs have to end by themselves
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
