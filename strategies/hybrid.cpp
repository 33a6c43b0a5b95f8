// hybrid: the axes data, pipeline and tensor at once. Each axis uses the classes of the strategy for that axis.
//
// D, S and N ranks along data, pipeline and tensor. A rank holds the layers of its stage (1 of S), sharded over N
// ranks, and reads 1/D of each global batch.
// Replicated along data: the state of the rank; with `how: fsdp` it is sharded.
// Sent along tensor: 2·(N−1)/N of the activations of sharded layers. Sent along pipeline: the boundaries of the stage.
// Sent along data: the gradients, 2·(D−1)/D of (P − C + C/N)/S elements, where C of the P parameters are sharded.
// Memory with e bytes per element and k moments: (P − C + C/N)/S·e·(2 + k), and the activations of the share. With
// S > 1 the schedule decides how many micro-batches are live.
#include "core/strategy.h"

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/common/step/start_checks.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/replicas/replicated_data.h"
#include "strategies/shards/sharded_data.h"
#include "strategies/stages/runners.h"
#include "strategies/tensor/sharded_layers.h"

namespace convoy {

std::unique_ptr<Strategy> make_hybrid(const Options& options) {
  const bool shards = mesh_options(options).sharded;
  const ShardedOptions sharded{sharded_step_options(options)};
  MeshComponents components{sharded};
  const bool deferred = shards && sharded.shard == Shard::parameters;
  components.runner = [stages = pipeline_options(options), group = tensor_group_options(options),
                       step = components.options, deferred](const Context& context, ModelPtr model, LossPtr loss) {
    PartRequest request = part_request(context, step);
    request.deferred = deferred;
    request = sharded_part(context, {group, planned_shards(*model)}, std::move(request));
    if (context.axis("pipeline")->size() == 1)
      return make_whole_runner(context, std::move(model), std::move(loss), std::move(request));
    return make_pipeline_runner(context, std::move(model), std::move(loss), stages, step.micro_batches, request);
  };
  components.data = [shards, sharded](const Context& context,
                                      const std::vector<ModelPart*>& model_parts) -> std::unique_ptr<DataAxis> {
    share_foreign_values(model_parts, *context.axis("tensor"));
    if (shards) return std::make_unique<ShardedData>(context, model_parts, sharded);
    return std::make_unique<ReplicatedData>(context, model_parts, ReplicatedOptions{sharded});
  };
  return make_mesh_strategy(std::move(components));
}

}  // namespace convoy
