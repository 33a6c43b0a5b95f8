#include "strategies/registry.h"

#include "core/optim/precision.h"
#include "strategies/common/memory/block_counts.h"
#include "strategies/common/memory/fake_tensors.h"

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

}  // namespace convoy
