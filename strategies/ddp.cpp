// ddp: every rank of the axis `data` holds the whole model and trains on its share of each global batch.
//
// Replicated: parameters, gradients, moments, buffers. Sharded: the rows of the batch.
// Sent per update, by each of N ranks with P parameters of e bytes: one all-reduce of P·e bytes in buckets,
// 2·(N−1)/N·P·e by ring.
// Bucket 0 begins with the weight and the sum of the loss, so uneven shares and empty ranks need no extra message.
// Memory per rank: P·e·(2 + k) with k moments, and the activations of the share.
// Sparse embeddings are the exception. A rank holds 1/N of the rows and moments of a sharded embedding
// (strategies/sparse/sharded_rows.h).
// Ranks of a host share one copy of other embeddings and divide their updates (strategies/sparse/shared_rows.h).
#include "core/strategy.h"

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/replicas/replicated_data.h"
#include "strategies/sparse/shared_rows.h"
#include "strategies/sparse/sparse_embedding.h"

namespace convoy {

std::unique_ptr<Strategy> make_ddp(const Options& options) {
  MeshComponents components{step_options(options)};
  components.runner = [step = components.options](const Context& context, ModelPtr model, LossPtr loss) {
    PartRequest request = part_request(context, step);
    request.rows = make_sparse_rule(context.config, context.axis("data")->size(), context.rank == 0);
    request.layers = sharded_row_layers(context);
    if (!request.layers) request.layers = shared_row_layers(context);
    return make_whole_runner(context, std::move(model), std::move(loss), std::move(request));
  };
  components.data = [step = components.options](const Context& context, const std::vector<ModelPart*>& model_parts) {
    return std::make_unique<ReplicatedData>(context, model_parts, ReplicatedOptions{step});
  };
  return make_mesh_strategy(std::move(components));
}

// Differs from ddp only in its plan: ranks are threads, not processes.
std::unique_ptr<Strategy> make_data_parallel(const Options& options) { return make_ddp(options); }

}  // namespace convoy
