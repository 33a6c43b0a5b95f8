// hybrid: the axes data, pipeline and tensor at once, each by the part that its own strategy is made of.
//
// With D, S and N ranks along data, pipeline and tensor a rank holds the cut layers (N) of its stage (S) and reads
// 1/D of each global batch. Replicated along data: what the rank holds, or with `how: fsdp` nothing of it. Sent: what
// a stage's share of layers sends within tensor (the activations of its rows, 2·(N−1)/N), its borders along pipeline,
// and its gradients along data, 2·(D−1)/D of (P − C + C/N)/S elements. Memory: (P − C + C/N)/S·e·(2 + k), and the
// activations of R/D rows.
#include "strategies/hybrid.h"

#include "strategies/parts/equal_start.h"
#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/replicated_data.h"
#include "strategies/parts/sharded_layers.h"

namespace convoy {

std::unique_ptr<Strategy> make_hybrid(const Options& options) {
  MeshParts parts;
  parts.every = options.section("sync").integer("every");
  parts.micro_batches = options.integer("micro_batches");
  parts.runner = [options](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    return make_whole_runner(context, std::move(model), std::move(loss),
                             sharded_part(context, tensor_options_of(options), part_request(context, options)));
  };
  parts.data = [replicated = replicated_options(options)](const Context& context, const std::vector<ModelPart*>& held) {
    share_foreign_values(held, *context.axis("tensor"));
    return std::make_unique<ReplicatedData>(context, held, replicated);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
