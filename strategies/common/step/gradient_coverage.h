// GradientCoverage, and a warning about an optimizer option without effect.
#pragma once
#include <memory>
#include <vector>

#include "core/context.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts);
// Rank 0 warns if the optimizer is lazy and the run has no sparse embedding.
void warn_if_lazy_is_unused(const Context& context, const std::vector<ParameterPtr>& tables);

// GradientCoverage: warns once about parameters without a gradient at the end of the first update.
//
// A parameter counts as reached if any rank with it got a gradient, and for an ensemble if any member did. Frozen
// parameters and sparse embeddings are left out. Ranks compare over the control channel, without waiting; rank 0 warns.
// Threads: the rank's thread.
class GradientCoverage {
 public:
  explicit GradientCoverage(const Context& context)
      : channel_(context.channel), rank_(context.rank), size_(context.size) {}
  // Call it after each update, on all ranks of the job. Only the first call has an effect.
  void updated(const std::vector<ModelPart*>& parts);

 private:
  std::shared_ptr<Channel> channel_;
  int rank_, size_;
  bool done_ = false;
};

}  // namespace convoy
