// DeviceWorker: the thread of one device of a rank. On the CPU a device is a set of cores, and the thread is bound to
// them.
//
// Call order: any number of start → wait. Threads: the rank's thread. Failure: wait rethrows the task's exception; the
// constructor throws Error(config) if the kernel refuses the cores.
#pragma once
#include <ATen/core/Tensor.h>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "strategies/plans/schedule.h"
#include "strategies/stages/stage_loop.h"

namespace convoy {

// Mailbox: passes activations and gradients between the device threads of a rank.
//
// Thread-safe. `take` waits for the matching `give`, and throws Stopped after `stop`.

class Mailbox {
 public:
  // Another thread failed; this thread has no error.
  struct Stopped {};
  using Key = std::tuple<Action::Kind, int, int>;  // kind, receiving stage, micro-batch

  // Empties the mailbox and clears `stop`.
  void open();
  void stop();
  void give(const Key& key, Activations what);
  Activations take(const Key& key);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Activations> waiting_;
  bool stopped_ = false;
};

// End of the mailbox at one device: received tensors are moved to its memory.
class DeviceLink : public StageLink {
 public:
  DeviceLink(Mailbox& mailbox, at::Device device) : mailbox_(mailbox), device_(device) {}

  void ahead(size_t) override {}
  void give_activations(int stage, int micro, Activations activations) override;
  Activations take_activations(int stage, int micro) override;
  void give_gradients(int stage, int micro, TensorList gradients) override;
  TensorList take_gradients(int stage, int micro) override;

 private:
  Activations received(const Mailbox::Key& key);

  Mailbox& mailbox_;
  at::Device device_;
};

struct WorkerSettings {
  at::Device device{at::kCPU};
  std::vector<int> cores;  // hardware threads; empty: not bound
  int threads = 1;         // intra-op
};

class DeviceWorker {
 public:
  explicit DeviceWorker(const WorkerSettings& settings);
  ~DeviceWorker();  // waits for the current task
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  void start(std::function<void()> task);
  void wait();

  // Actual binding and thread count, read back from the kernel by the thread.
  const std::vector<int>& cores() const { return cores_; }
  int threads() const { return threads_; }

 private:
  void work(const WorkerSettings& settings);

  std::vector<int> cores_;
  int threads_ = 0;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = true;  // a task runs; initially the thread starts
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last member: starts when all others exist
};

}  // namespace convoy
