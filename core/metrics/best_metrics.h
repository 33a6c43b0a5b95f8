// Last and best value of every evaluated metric, in the form in which summary.json and checkpoints keep it:
// {name: {last, best, best_step, members?, lower_is_better?}}, the last only where it is so. A NaN is never the best;
// non-finite values are written as text.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/metrics/accumulator.h"
#include "core/options.h"

namespace convoy {

class BestMetrics {
 public:
  void add(const std::map<std::string, MetricValue>& values, int64_t step);  // of the state after `step` steps
  void restore(const Json& json) { json_ = json; }
  const Json& json() const { return json_; }

 private:
  Json json_ = Json::object();
};

}  // namespace convoy
