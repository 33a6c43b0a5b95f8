// fsdp: every rank of the axis `data` trains on its share of each global batch; the ranks shard the state that ddp
// replicates (Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023).
//
// N ranks, P parameters of e bytes, k moments, m micro-batches, f = (N−1)/N. p: parameters of the two neighbouring
// blocks that are largest together; l: of the last block.
// Buffers are always replicated. Memory of a rank, and bytes that it sends:
//   shard: optimizer   memory P·e·(2 + k/N); sent per update 2·f·P·e
//   shard: gradients   memory P·e·(1 + (1 + k)/N) + p·e; sent f·P·e·(m + 1) per update
//   shard: parameters  memory P·e·(2 + k)/N + 2·p·e; sent per update f·m·(3·P − l)·e: backward does not gather the last
//                      block again. With reshard_after_forward: false f·m·2·P·e, and P·e replaces one p·e
// Add the activations of the share.
// Order of messages: strategies/shards/sharded_data.h; full formulas: strategies/plans.
#include "core/strategy.h"

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/shards/sharded_data.h"

namespace convoy {

std::unique_ptr<Strategy> make_fsdp(const Options& options) {
  const ShardedOptions sharded{sharded_step_options(options)};
  MeshComponents components{sharded};
  components.runner = [sharded](const Context& context, ModelPtr model, LossPtr loss) {
    PartRequest request = part_request(context, sharded);
    request.deferred = sharded.shard == Shard::parameters;
    return make_whole_runner(context, std::move(model), std::move(loss), std::move(request));
  };
  components.data = [sharded](const Context& context, const std::vector<ModelPart*>& model_parts) {
    return std::make_unique<ShardedData>(context, model_parts, sharded);
  };
  return make_mesh_strategy(std::move(components));
}

}  // namespace convoy
