// MeshStrategy: the step that all strategies on a mesh {data, pipeline, tensor} share. What differs between them is who
// leads micro-batches through the model (Runner), what its layers are (PartRequest::layers), and how gradients become an
// update (DataAxis).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "core/strategy.h"
#include "strategies/parts/data_axis.h"
#include "strategies/parts/runner.h"

namespace convoy {

struct MeshParts {
  int64_t every = 1;            // steps an update
  int64_t micro_batches = 1;    // of a step
  std::string graph = "never";  // of graph_option(); of use where the data axis is Recordable
  std::function<std::unique_ptr<Runner>(const Context&, ModelPtr, std::shared_ptr<const LossFunction>)> runner;
  std::function<std::unique_ptr<DataAxis>(const Context&, const std::vector<ModelPart*>&)> data;
};

std::unique_ptr<Strategy> make_mesh_strategy(MeshParts parts);

}  // namespace convoy
