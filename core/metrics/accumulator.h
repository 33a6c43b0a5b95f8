// MetricAccumulator: sums additive metrics on the device and reduces them over all ranks at an interval.
//
// Steps return metrics as tensors; adding them needs no read to the host. `reduce` makes one small all-reduce of all
// sums.
// Threads: one rank's thread; `reduce` is collective.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/communicator.h"
#include "core/context.h"
#include "core/model_interface.h"

namespace convoy {

struct MetricValue {
  double value = 0;             // sum over members and ranks ÷ weight; NaN without any weight
  std::vector<double> members;  // one per member; empty for a single model
  bool lower_is_better = false;
  double weight = 0;  // weight over members and ranks
  // Sum of the negative batch weights over members and ranks. Set for the first metric only.
  double negative_weight = 0;
};

class MetricAccumulator {
 public:
  // Error(training) for a repeated name, and for names that differ from the first call's.
  void add(const std::vector<Metric>& metrics);
  const std::vector<std::string>& names() const { return names_; }  // names added since the last `reduce`
  // Sums over all ranks, and resets. Every rank must have added metrics with equal names in equal order, or none. A
  // rank without metrics does not know the names and returns an empty map.
  std::map<std::string, MetricValue> reduce(Communicator& world);

 private:
  void check_names(const std::vector<Metric>& metrics) const;

  std::vector<std::string> names_;
  std::vector<bool> lower_is_better_;
  std::vector<Metric::Form> forms_;
  std::vector<at::Tensor> sums_, weights_;  // float64, 1-d
  at::Tensor negative_weight_;              // sum of the first metric's negative weights
};

// True if `value` is finite and better than `best`, or if `best` is NaN: there is none.
bool is_better(double value, double best, bool lower_is_better);

// BestMetrics: last and best value of every evaluation metric, in the form of summary.json and checkpoints: {name:
// {last, best, best_step, members?, lower_is_better?}}. lower_is_better appears only if true. A NaN is never the best.
// Non-finite values are written as text.
class BestMetrics {
 public:
  void add(const std::map<std::string, MetricValue>& values, int64_t step);  // metrics of the state after `step` steps
  void restore(const Json& json) { json_ = json; }
  const Json& json() const { return json_; }

 private:
  Json json_ = Json::object();
};

// SameMetrics: checks that all ranks evaluate the same metrics, because their sums are matched by order alone. Threads:
// one rank's thread. Failure: CommError(disagreement) on every rank, with both lists.
class SameMetrics {
 public:
  explicit SameMetrics(const Context& context) : context_(context) {}
  // Collective at the first call for each `kind` of evaluation. Later calls compare this rank's names with those of the
  // first call, without communication. Error(training) if they changed.
  void check(const std::string& kind, const std::vector<std::string>& names);

 private:
  const Context& context_;
  std::map<std::string, std::vector<std::string>> agreed_;  // by kind
};

}  // namespace convoy
