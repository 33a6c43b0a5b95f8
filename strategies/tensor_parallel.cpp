// tensor_parallel: the ranks of the axis `tensor` share out the layers of one replica and train on the same rows.
//
// Cut: linear layers by their hints and embeddings by rows, with their gradients and moments; the activations between
// column- and row-cut layers. Replicated: all other parameters, activations and computing; the batch. Sent per step
// by each of N ranks, with I bytes of inputs of column-cut layers and O of outputs of row-cut layers and embeddings:
// 2·(N−1)/N·(I + O), in messages of one activation. Column-cut layers send while they compute their weight's
// gradient, the others are waited for. With shares of sequences (N−1)/N·(3·I + 2·O) and one activation more. Memory
// per rank, C of P elements being cut, e bytes each, k moments: (P − C + C/N)·e·(2 + k), and what backward keeps: 1/N
// of what lies between cut layers, with shares of sequences of all.
// The layers: parts/tensor/sharded_layers.h.
#include "strategies/tensor_parallel.h"

#include <limits>

#include "strategies/parts/equal_start.h"
#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/replicas/replicated_data.h"
#include "strategies/parts/tensor/sharded_layers.h"

namespace convoy {

std::unique_ptr<Strategy> make_tensor_parallel(const Options& options) {
  MeshParts parts;
  parts.every = options.section("sync").integer("every");
  parts.micro_batches = options.integer("micro_batches");
  parts.runner = [options](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    return make_whole_runner(context, std::move(model), std::move(loss),
                             sharded_part(context, tensor_options_of(options), part_request(context, options)));
  };
  ReplicatedOptions replicated;
  replicated.sync = sync_policy(options.json());
  // Nothing is reduced along a data axis of one: one bucket is the longest range for the optimizer.
  replicated.first_bytes = replicated.cap_bytes = std::numeric_limits<double>::max();
  parts.data = [replicated](const Context& context, const std::vector<ModelPart*>& held) {
    share_foreign_values(held, *context.axis("tensor"));
    return std::make_unique<ReplicatedData>(context, held, replicated);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
