// Implementation of LoadedModel, for the commands of `convoy` that use a trained run.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convoy/load.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/manifest.h"
#include "core/config/run_config.h"
#include "core/context.h"
#include "core/data/contents.h"
#include "core/data/readers/new_rows.h"
#include "core/registry.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

// Which weights to load, and into what.
struct LoadRequest {
  RunConfig config;                           // configuration of the checkpoint, with changes of the user
  std::string checkpoint;                     // step-N folder
  int member = -1;                            // member of an ensemble; -1: the checkpoint has a single model
  Schema schema;                              // schema of the rows that the model was trained on
  std::optional<DataContents> contents = {};  // names of ids and classes, and the preparation of columns
  at::Device device{at::kCPU};
};

// Applies those of data.transforms that evaluation uses too (normalise, not flip), to rows outside of training.
class EvaluationTransforms {
 public:
  EvaluationTransforms(const RunConfig& config, const Registry& registry);
  // `first`: number of the first row of the batch.
  void apply(Batch& batch, int64_t first) const;

 private:
  std::vector<std::shared_ptr<const Transform>> transforms_;
  uint64_t seed_;
};

struct LoadedModel::Impl {
  Impl(LoadRequest request, ModelPtr model, int64_t step, const Registry& registry);
  // Data set, fields and lists of the checkpoint, for new rows. Refers to this object.
  TrainedData trained() const {
    return {request.config.data, request.schema, request.contents ? &*request.contents : nullptr};
  }

  const LoadRequest request;
  const ModelPtr model;
  const int64_t step;
  const EvaluationTransforms transforms;
  ModelPart part;                             // the whole model
  std::map<std::string, at::Tensor> tensors;  // parameters and buffers by canonical name; views of the model's memory
};

// Fields of the rows that a checkpoint's model was trained on. A checkpoint of an earlier version does not describe
// them: then the data set of the configuration does.
Schema stored_schema(const Manifest& manifest, const std::string& folder, const RunConfig& config,
                     const Registry& registry);

// Creates the model for the schema, and fills it from the checkpoint.
LoadedModel load_model(LoadRequest request, const Registry& registry);

}  // namespace convoy
