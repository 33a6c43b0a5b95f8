#include "core/optim/optimizer.h"

#include "core/name_pattern.h"
#include "core/optim/dense.h"

namespace convoy {

std::unique_ptr<Optimizer> make_optimizer(const Component& optimizer) {
  for (const Options& group : optimizer.options.sections("groups")) NamePattern{group};
  if (optimizer.name == "sgd") return make_sgd(optimizer.options);
  if (optimizer.name == "adam") return make_adam(optimizer.options, /*decoupled=*/false);
  if (optimizer.name == "adagrad") return make_adagrad(optimizer.options);
  CONVOY_CHECK(optimizer.name == "adamw", "optimizer '", optimizer.name, "' stands in the catalogue and nowhere else");
  return make_adam(optimizer.options, /*decoupled=*/true);
}

GroupSettings group_settings(const Component& optimizer, const std::string& parameter_name) {
  const Options& options = optimizer.options;
  GroupSettings settings{1, options.real("weight_decay")};
  for (const Options& group : options.sections("groups")) {
    if (!NamePattern(group).found_in(parameter_name)) continue;
    if (group.has("lr")) settings.learning_rate_factor = group.real("lr") / options.real("lr");
    if (group.has("weight_decay")) settings.weight_decay = group.real("weight_decay");
    break;
  }
  return settings;
}

}  // namespace convoy
