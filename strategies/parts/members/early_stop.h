// EarlyStop: which members have gone so many evaluations without a better figure that they end. The same on all ranks, since
// all are told the same figures.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/metrics/accumulator.h"
#include "strategies/parts/members/members_entry.h"

namespace convoy {

class EarlyStop {
 public:
  // All members of the job.
  EarlyStop(const std::vector<MemberSettings>& members, std::string metric);

  // Error(config) naming the figures that there are where the one that is watched is not among them.
  void add(const std::map<std::string, MetricValue>& figures);
  bool finished(int64_t member) const { return finished_.const_data_ptr<bool>()[member]; }
  int64_t training() const;  // members that have not

  // The tensors of `state` were written to: members end by the patience of now, which may differ from the checkpoint's.
  void restored();
  // Later figures cannot be compared with earlier ones: no member has a best figure, and none has finished.
  void reset();

  // By name, for checkpoints; writable.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  std::vector<int64_t> patience_;
  std::string metric_;
  at::Tensor best_;      // float64 [members]; NaN: none yet
  at::Tensor waited_;    // evaluations since, int64
  at::Tensor finished_;  // bool
};

}  // namespace convoy
