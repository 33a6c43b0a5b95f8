#include "strategies/parts/members/registry.h"

#include <ATen/core/grad_mode.h>

#include "core/single_communicator.h"
#include "strategies/parts/model_part.h"

namespace convoy {

std::vector<std::string> metric_names(const RunConfig& config, const ModelPtr& model,
                                      std::shared_ptr<const LossFunction> loss, const Batch& batch) {
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
