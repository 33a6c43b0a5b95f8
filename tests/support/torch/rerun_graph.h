// A recording without a GPU: it runs the step again with the input, and the host's decisions, at the time of recording.
// Threads: the rank's thread.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/strategy.h"

namespace convoy::testing {

struct Counted {
  int64_t records = 0, launches = 0;
};

// Recording has no effect: the changes of the work are undone.
class Rerun : public DeviceGraph {
 public:
  Rerun(Strategy& strategy, Counted& counted, double wrong) : strategy_(strategy), counted_(counted), wrong_(wrong) {}
  void record(const std::function<void()>& work) override {
    std::vector<at::Tensor> before;
    strategy_.visit_state([&](const StateEntry& entry) { before.push_back(entry.tensor.clone()); });
    work();
    size_t index = 0;
    strategy_.visit_state([&](const StateEntry& entry) {
      at::NoGradGuard no_grad;
      at::Tensor tensor = entry.tensor;
      tensor.copy_(before[index++]);
    });
    work_ = work;
    ++counted_.records;
  }
  void launch() override {
    work_();
    ++counted_.launches;
    if (wrong_ == 0) return;
    at::NoGradGuard no_grad;
    bool first = true;
    strategy_.visit_state([&](const StateEntry& entry) {
      at::Tensor tensor = entry.tensor;
      if (std::exchange(first, false)) tensor.add_(wrong_);
    });
  }

 private:
  Strategy& strategy_;
  Counted& counted_;
  const double wrong_;
  std::function<void()> work_;
};

}  // namespace convoy::testing
