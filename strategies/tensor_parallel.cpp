// tensor_parallel: the layers of one replica are sharded over the ranks of the axis `tensor`. All ranks train on the
// same rows.
//
// Sharded: linear layers by their hints, embeddings by rows, with gradients and moments; the activations between
// column- and row-parallel layers.
// Replicated: all other parameters, activations and computation; the batch.
// Sent per step by each of N ranks: 2·(N−1)/N·(I + O), in messages of one activation. I: bytes of inputs of
// column-parallel layers; O: bytes of outputs of row-parallel layers and embeddings.
// Column-parallel layers send while they compute the gradient of their weight; ranks wait for the other messages.
// With sequence parallelism: (N−1)/N·(3·I + 2·O), and the activations where sequence shards begin and end.
// Memory per rank, if C of P elements are sharded, with e bytes each and k moments: (P − C + C/N)·e·(2 + k), and the
// activations. A rank keeps 1/N of those between sharded layers; with sequence parallelism 1/N of all.
// Layers: strategies/tensor/sharded_layers.h.
#include "core/strategy.h"

#include <limits>

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/common/step/start_checks.h"
#include "strategies/replicas/replicated_data.h"
#include "strategies/tensor/sharded_layers.h"

namespace convoy {

std::unique_ptr<Strategy> make_tensor_parallel(const Options& options) {
  MeshComponents components{step_options(options)};
  components.runner = [tensor = TensorOptions{tensor_group_options(options)}, step = components.options](
                          const Context& context, ModelPtr model, LossPtr loss) {
    return make_whole_runner(context, std::move(model), std::move(loss),
                             sharded_part(context, tensor, part_request(context, step)));
  };
  ReplicatedOptions replicated{components.options};
  // A data axis of size one reduces nothing. One bucket gives the optimizer the longest range.
  replicated.first_bytes = replicated.cap_bytes = std::numeric_limits<double>::max();
  components.data = [replicated](const Context& context, const std::vector<ModelPart*>& model_parts) {
    share_foreign_values(model_parts, *context.axis("tensor"));
    return std::make_unique<ReplicatedData>(context, model_parts, replicated);
  };
  return make_mesh_strategy(std::move(components));
}

}  // namespace convoy
