#include "strategies/common/step/gradient_coverage.h"

#include <set>
#include <utility>

#include "core/base/log.h"
#include "core/model_checks.h"

namespace convoy {

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts) {
  std::vector<ParameterPtr> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->tables().begin(), part->tables().end());
  return all;
}

void warn_if_lazy_is_unused(const Context& context, const std::vector<ParameterPtr>& tables) {
  const Options& optimizer = context.config.optimizer.options;
  if (context.rank != 0 || !tables.empty() || !optimizer.has("lazy") || !optimizer.boolean("lazy")) return;
  log::warning(
      "optimizer.lazy: true has no effect: it applies to sparse embeddings, and this run has none; set model.rows: "
      "true, or leave it out");
}

void GradientCoverage::updated(const std::vector<ModelPart*>& parts) {
  if (std::exchange(done_, true)) return;
  std::set<std::string> reached, missing;
  for (const ModelPart* part : parts)
    for (const ParameterPtr& parameter : part->parameters())
      (parameter->reached ? reached : missing).insert(parameter->name);
  for (const std::string& name : reached) missing.erase(name);
  warn_without_gradient(channel_, rank_, size_, missing, reached);
}

}  // namespace convoy
