// Data set, transforms, model and loss of a run, made so that what they refuse or find damaged is told at the key that the
// user wrote, also when it is found in the middle of training: file:line:column, key, reason.
// Threads: as of what they hold. Failure: ConfigError, with the kind of what failed.
#pragma once
#include <memory>
#include <vector>

#include "core/registry.h"

namespace convoy {

struct TrainedParts {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  ModelPtr model;
  std::shared_ptr<const LossFunction> loss;
};

// Tries the transforms on a row, so that one that does not fit is told before any rank meets another.
TrainedParts located_parts(const RunConfig& config, const Registry& registry);

}  // namespace convoy
