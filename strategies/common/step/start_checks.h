// Checks at the start. Before step 0 ranks compare their parameters. Before the first checkpoint of a program they also
// compare the values. After the first update rank 0 warns about parameters without a gradient.
#pragma once
#include <memory>
#include <vector>

#include "core/context.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

// --- Comparisons ---

// Collective, over the control channel. Compares names, shapes and dtypes along the axis `data`, and names, dimensions
// and dtypes along `tensor`. Throws Error(disagreement) with the first parameter that differs and both ranks' versions
// of it. `number`: number of earlier calls in this job.
void check_equal_parameters(const Context& context, const std::vector<ModelPart*>& parts, int number = 0);

// Compares the values of replicated parameters along the axis `data`. `number`: number of earlier calls in this job.
void check_equal_values(const Context& context, const std::vector<ParameterPtr>& parameters, int number);

// Copies values of foreign modules' parameters, and all buffers, from the group's rank 0 to all. Each rank
// creates them itself, so they may differ.
void share_foreign_values(const std::vector<ModelPart*>& parts, Communicator& group);

// --- Warnings ---

// Returns the sparse embeddings of all parts.
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
