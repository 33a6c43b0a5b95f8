// What the launcher's rank process asks of members' model before any is trained (catalogue.h says what for).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/model_interface.h"

namespace convoy {

// Names of the metrics of a fresh model on the CPU, in its order, from an evaluation of the batch. Throws what the model throws.
std::vector<std::string> metric_names(const RunConfig& config, const ModelPtr& model,
                                      std::shared_ptr<const LossFunction> loss, const Batch& batch);

}  // namespace convoy
