// Data set, transforms, model and loss of a run, made so that what they refuse or find damaged is told at the key that the
// user wrote, also when it is found in the middle of training: file:line:column, key, reason.
// Threads: as of what they hold. Failure: ConfigError, with the kind of what failed.
#pragma once
#include <functional>
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

// Tries the transforms on a row, so that one that does not fit is told before any rank meets another. `settle` gives the data
// set that is used, after it was read and before a model is made for it.
TrainedParts located_parts(const RunConfig& config, const Registry& registry,
                           const std::function<DatasetPtr(const DatasetPtr&)>& settle = nullptr);

}  // namespace convoy
