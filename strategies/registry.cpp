#include "strategies/registry.h"

#include "strategies/ddp.h"
#include "strategies/single.h"

namespace convoy {

void register_strategies(Registry& registry) {
  registry.strategies.add("single", [](const Options& options) { return make_single(options); });
  registry.strategies.add("ddp", [](const Options& options) { return make_ddp(options); });
}

}  // namespace convoy
