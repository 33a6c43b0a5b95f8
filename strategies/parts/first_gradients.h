// FirstGradients: warns once of parameters to which no gradient has come by the end of the first update.
//
// A parameter counts as reached if any rank that holds it got a gradient, and for an ensemble if any member did. Frozen
// parameters and row tables are left out. Ranks compare over the control channel, without waiting; rank 0 warns.
// Threads: the rank's own.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "strategies/parts/model_part.h"

namespace convoy {

class FirstGradients {
 public:
  explicit FirstGradients(const Context& context)
      : channel_(context.channel), rank_(context.rank), size_(context.size) {}
  // After each update, on all ranks of the job; all calls but the first do nothing.
  void updated(const std::vector<ModelPart*>& parts);

 private:
  std::shared_ptr<Channel> channel_;
  int rank_, size_;
  bool done_ = false;
};

}  // namespace convoy
