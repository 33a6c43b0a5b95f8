#include "strategies/registry.h"

#include "strategies/ddp.h"
#include "strategies/fsdp.h"
#include "strategies/hybrid.h"
#include "strategies/single.h"
#include "strategies/tensor_parallel.h"

namespace convoy {

void register_strategies(Registry& registry) {
  registry.strategies.add("single", [](const Options& options) { return make_single(options); });
  // Its ranks are threads and not processes, which is the plan's affair.
  registry.strategies.add("data_parallel", [](const Options& options) { return make_ddp(options); });
  registry.strategies.add("ddp", [](const Options& options) { return make_ddp(options); });
  registry.strategies.add("tensor_parallel", [](const Options& options) { return make_tensor_parallel(options); });
  registry.strategies.add("hybrid", [](const Options& options) { return make_hybrid(options); });
  registry.strategies.add("fsdp", [](const Options& options) { return make_fsdp(options); });
}

}  // namespace convoy
