// Sums additive metrics on the device, and tells the job's figures to every rank at an interval.
//
// Role: steps return metrics as tensors that nobody reads; the accumulator adds them without a host read, and `reduce`
// makes one small all-reduce of everything it holds. Threads: one rank's thread; `reduce` is collective.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/model_interface.h"

namespace convoy {

struct MetricValue {
  double value = 0;             // sum over members and ranks ÷ weight; NaN without any weight
  std::vector<double> members;  // one per member, where there are several
  bool lower_is_better = false;
};

class MetricAccumulator {
 public:
  // Error(training) for a name that occurs twice, and for other names than the first time.
  void add(const std::vector<Metric>& metrics);
  const std::vector<std::string>& names() const { return names_; }  // of what was added since the last `reduce`
  // Sums over all ranks, and starts afresh. Every rank must have added metrics of the same names in the same order, or
  // none at all (a rank without any learns names from nobody: it returns an empty map).
  std::map<std::string, MetricValue> reduce(Communicator& world);

 private:
  void check_names(const std::vector<Metric>& metrics) const;

  std::vector<std::string> names_;
  std::vector<bool> lower_is_better_;
  std::vector<at::Tensor> sums_, weights_;  // float64, 1-d
};

}  // namespace convoy
