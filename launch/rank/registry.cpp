#include "backends/registry.h"

#include "core/builtins.h"
#include "core/plugin.h"
#include "launch/rank/rank.h"
#include "models/registry.h"
#include "strategies/registry.h"

namespace convoy {

Registry make_registry(RunConfig& config) {
  Registry registry;
  register_core(registry);
  register_models(registry);
  register_strategies(registry);
  register_backends(registry);
  // TODO-PLUGINS
  (void)config;
  return registry;
}

}  // namespace convoy
