#include "strategies/registry.h"

#include "strategies/ddp.h"
#include "strategies/ensemble.h"
#include "strategies/fsdp.h"
#include "strategies/hybrid.h"
#include "strategies/model_parallel.h"
#include "strategies/parts/block_counts.h"
#include "strategies/parts/fake_tensors.h"
#include "strategies/parts/precision.h"
#include "strategies/pipeline.h"
#include "strategies/single.h"
#include "strategies/tensor_parallel.h"

namespace convoy {

void register_strategies(Registry& registry) {
  registry.strategies.add("single", [](const Options& options) { return make_single(options); });
  // Its ranks are threads and not processes, which is the plan's affair.
  registry.strategies.add("data_parallel", [](const Options& options) { return make_ddp(options); });
  registry.strategies.add("ddp", [](const Options& options) { return make_ddp(options); });
  registry.strategies.add("model_parallel", [](const Options& options) { return make_model_parallel(options); });
  registry.strategies.add("tensor_parallel", [](const Options& options) { return make_tensor_parallel(options); });
  registry.strategies.add("pipeline", [](const Options& options) { return make_pipeline(options); });
  registry.strategies.add("fsdp", [](const Options& options) { return make_fsdp(options); });
  registry.strategies.add("hybrid", [](const Options& options) { return make_hybrid(options); });
  registry.strategies.add("ensemble", [](const Options& options) { return make_ensemble(options); });
}

Description describe_model(const Model& model, const std::string& precision) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(parameter_dtype(precision)));
  try {
    const FakeTensors fake;  // modules that a block makes itself take no memory
    return count_blocks(model, element_bytes);
  } catch (const std::exception&) {
    return count_blocks(model, element_bytes);  // one that wants values gets them, or says what it lacks
  }
}

}  // namespace convoy
