#include "strategies/registry.h"

#include "strategies/ddp.h"
#include "strategies/single.h"

namespace convoy {

void register_strategies(Registry& registry) {
  registry.strategies.add("single", [](const Options& options) { return make_single(options); });
  // Its ranks are threads and not processes, which is the plan's affair.
  registry.strategies.add("data_parallel", [](const Options& options) { return make_ddp(options); });
  registry.strategies.add("ddp", [](const Options& options) { return make_ddp(options); });
}

}  // namespace convoy
