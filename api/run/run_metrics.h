// RunMetrics: sums the metrics that a program logs, over steps and ranks. Ranks may log different names.
// Threads: the rank's thread; `reduce` is collective.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/metrics/accumulator.h"

namespace convoy {

class RunMetrics {
 public:
  explicit RunMetrics(const Context& context) : context_(context) {}
  // Adds a sum and its weight: one number each, on any device.
  void add(const std::string& name, const at::Tensor& sum, const at::Tensor& weight);
  // Sums over all ranks since the last call, and resets. Leaves out metrics without weight.
  std::map<std::string, MetricValue> reduce();

 private:
  struct Value {
    at::Tensor sum, weight;  // double []
  };
  std::vector<std::string> agree_on_new();
  void add_sums(const std::vector<std::string>& names, std::map<std::string, MetricValue>& values, bool& unknown);

  const Context& context_;
  std::map<std::string, Value> values_;
  std::vector<std::string> names_;  // names that all ranks know, in one order
  int agreements_ = 0;
};

}  // namespace convoy
