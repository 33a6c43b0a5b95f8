// Creates data set, transforms, model and loss of a run. Their errors are reported at the key that the user wrote, as
// file:line:column, key, reason; also errors during training.
// Threads: see each component. Failure: ConfigError with the kind of the original error.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/config/run_config.h"
#include "core/context.h"
#include "core/registry.h"

namespace convoy {

// Registry of the built-in components and of those in plugins that the configuration names. Checks the options of
// plugin components, and completes the configuration with them. `few_rows`: as for make_synthetic.
Registry make_registry(RunConfig& config, bool few_rows = false);

struct Components {
  DatasetPtr data;
  std::vector<std::shared_ptr<const Transform>> transforms;
  ModelPtr model;
  LossPtr loss;
};

// Applies the transforms to one row, so that a wrong one fails before the rendezvous. `check_data` replaces the data
// set after it is read and before the model is created.
Components make_components(const RunConfig& config, const Registry& registry,
                           const std::function<DatasetPtr(const DatasetPtr&)>& check_data = nullptr);

}  // namespace convoy
