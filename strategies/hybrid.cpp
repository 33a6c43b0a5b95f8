// hybrid: the axes data, pipeline and tensor at once, each by the part that its own strategy is made of.
//
// With D, S and N ranks along data, pipeline and tensor a rank holds the cut layers (N) of its stage (S) and reads
// 1/D of each global batch. Replicated along data: what the rank holds, or with `how: fsdp` nothing of it. Sent: what
// a stage's share of layers sends within tensor (the activations of its rows, 2·(N−1)/N), its borders along pipeline,
// and its gradients along data, 2·(D−1)/D of (P − C + C/N)/S elements. Memory: (P − C + C/N)/S·e·(2 + k), and the
// activations of R/D rows, with S > 1 of as many micro-batches as the schedule keeps alive.
#include "strategies/hybrid.h"

#include "strategies/parts/equal_start.h"
#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/replicas/replicated_data.h"
#include "strategies/parts/shards/sharded_data.h"
#include "strategies/parts/stages/pipeline_runner.h"
#include "strategies/parts/tensor/sharded_layers.h"

namespace convoy {

std::unique_ptr<Strategy> make_hybrid(const Options& options) {
  const Json data = options.section("mesh").at("data");
  const bool shards = data.is_object() && data.value("how", "ddp") == "fsdp";
  const ShardedOptions sharded = sharded_options(options);
  MeshParts parts;
  parts.every = sync_policy(options.json()).every;
  parts.micro_batches = options.integer("micro_batches");
  const bool deferred = shards && sharded.shard == Shard::parameters;
  parts.runner = [options, deferred](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    PartRequest request = part_request(context, options);
    request.deferred = deferred;
    TensorOptions tensor = tensor_options_of(options);
    tensor.cuts = planned_cuts(*model);
    request = sharded_part(context, tensor, std::move(request));
    if (context.axis("pipeline")->size() == 1)
      return make_whole_runner(context, std::move(model), std::move(loss), std::move(request));
    return make_pipeline_runner(context, std::move(model), std::move(loss), pipeline_options(options), request);
  };
  parts.data = [options, shards, sharded](const Context& context,
                                          const std::vector<ModelPart*>& held) -> std::unique_ptr<DataAxis> {
    share_foreign_values(held, *context.axis("tensor"));
    if (shards) return std::make_unique<ShardedData>(context, held, sharded);
    return std::make_unique<ReplicatedData>(context, held, replicated_options(options));
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
