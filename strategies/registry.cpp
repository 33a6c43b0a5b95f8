#include "strategies/registry.h"

#include <ATen/core/grad_mode.h>

#include "core/communicator.h"
#include "core/optim/precision.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/common/memory/fake_tensors.h"
#include "strategies/common/model/model_part.h"

namespace convoy {

#define CONVOY_DECLARE(name) std::unique_ptr<Strategy> make_##name(const Options& options);
CONVOY_STRATEGIES(CONVOY_DECLARE)
#undef CONVOY_DECLARE

void register_strategies(Registry& registry) {
#define CONVOY_REGISTER(name) registry.strategies.add(#name, make_##name);
  CONVOY_STRATEGIES(CONVOY_REGISTER)
#undef CONVOY_REGISTER
}

ModelDescription describe_model(const Model& model, const std::string& precision) {
  const auto element_bytes = int64_t(c10::elementSize(parameter_dtype(precision)));
  try {
    const FakeTensors fake;  // foreign modules of blocks take no memory
    return count_blocks(model, element_bytes);
  } catch (const std::exception&) {
    // The block may need values of its tensors.
    return count_blocks(model, element_bytes);
  }
}

std::vector<std::string> metric_names(const RunConfig& config, const ModelPtr& model, LossPtr loss,
                                      const Batch& batch) {
  at::NoGradGuard no_grad;
  Context context;
  context.config = config;
  context.world = make_single_communicator();
  ModelPart part(context, model, std::move(loss));
  std::vector<std::string> names;
  for (const Metric& metric : part.metrics(part.evaluate(batch), batch)) names.push_back(metric.name);
  return names;
}

}  // namespace convoy
