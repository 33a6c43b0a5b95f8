// DeviceWorker: the thread of one of a rank's devices. On the CPU a device is a set of cores, to which the thread is bound.
//
// Call order: any number of start → wait. Threads: the rank's. Failure: wait rethrows what the task threw; the constructor
// throws Error(config) where the kernel refuses the cores.
#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace convoy {

struct WorkerSettings {
  at::Device device{at::kCPU};
  std::vector<int> cores;  // processing units; empty: not bound
  int threads = 1;         // intra-op
};

class DeviceWorker {
 public:
  explicit DeviceWorker(const WorkerSettings& settings);
  ~DeviceWorker();  // behind the task under way
  DeviceWorker(const DeviceWorker&) = delete;
  DeviceWorker& operator=(const DeviceWorker&) = delete;

  void start(std::function<void()> task);
  void wait();

  // As the kernel says, read back by the thread itself.
  const std::vector<int>& cores() const { return cores_; }
  int threads() const { return threads_; }

 private:
  void work(const WorkerSettings& settings);

  std::vector<int> cores_;
  int threads_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = true;  // the task, at first getting ready, is not over
  bool ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: starts when all else stands
};

}  // namespace convoy
