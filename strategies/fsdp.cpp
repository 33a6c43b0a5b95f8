// fsdp: every rank of the axis `data` trains on its share of each global batch, and the ranks divide among them what ddp's
// hold each for itself (Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023).
//
// With N ranks, P parameters of e bytes, k moments, p bytes of the two largest neighbouring blocks, m micro-batches; sent by
// each rank, f being (N−1)/N; buffers are replicated in any case:
//   shard: optimizer   memory P·e·(2 + k/N); sent per update 2·f·P·e
//   shard: gradients   memory P·e·(1 + (1 + k)/N) + p; sent f·P·e a micro-batch and f·P·e an update
//   shard: parameters  memory P·e·(2 + k)/N + 2·p; sent 3·f·P·e a micro-batch, less what the last block needs not gather
//                      again (2·f·P·e with reshard_after_forward: false, which needs P·e in place of a p)
// and what backward keeps of the share. When what is sent: parts/shards/sharded_data.h; formulas in full: parts/shards/sharded_entry.h.
#include "strategies/fsdp.h"

#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/shards/sharded_data.h"

namespace convoy {

std::unique_ptr<Strategy> make_fsdp(const Options& options) {
  const ShardedOptions sharded = sharded_options(options);
  MeshParts parts;
  parts.every = sharded.every;
  parts.micro_batches = options.integer("micro_batches");
  parts.runner = [options, sharded](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    PartRequest request = part_request(context, options);
    request.deferred = sharded.shard == Shard::parameters;
    return make_whole_runner(context, std::move(model), std::move(loss), std::move(request));
  };
  parts.data = [sharded](const Context& context, const std::vector<ModelPart*>& held) {
    return std::make_unique<ShardedData>(context, held, sharded);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
