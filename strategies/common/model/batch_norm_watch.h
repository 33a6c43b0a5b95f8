// BatchNormWatch: finds calls of LibTorch's batch norm, such as torch::batch_norm in a block, with statistics of this
// rank's own rows. The planner finds modules; functions show only when they run.
//
// Layers::batch_norm of synchronised ranks does not call LibTorch's. Instance norm does, with statistics of each row:
// such a call counts only if it updates running statistics, by which evaluation normalises.
// Threads: sees the calls of the thread that made it, while it lives. One at a time in a thread.
#pragma once
#include <ATen/record_function.h>

namespace convoy {

class BatchNormWatch {
 public:
  BatchNormWatch();
  ~BatchNormWatch();
  BatchNormWatch(const BatchNormWatch&) = delete;
  BatchNormWatch& operator=(const BatchNormWatch&) = delete;

  // Name of the first call found, as "aten::batch_norm"; null if there was none.
  const char* found() const { return found_; }

 private:
  struct Call;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* call);

  at::CallbackHandle handle_;
  const char* found_ = nullptr;
  int instance_norms_ = 0;  // that the thread is in
};

}  // namespace convoy
