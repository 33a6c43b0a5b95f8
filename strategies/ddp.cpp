// ddp: every rank of the axis `data` holds everything and trains on its share of each global batch.
//
// Replicated: parameters, gradients, moments, buffers. Sharded: the batch's rows. Sent per update, by each of N ranks with
// P parameters of e bytes: one all-reduce of P·e bytes in buckets, 2·(N−1)/N·P·e by ring; the loss' weight and sum travel
// in front of bucket 0, so that ragged shares and ranks without rows need nothing of their own. Memory per rank:
// P·e·(2 + k) with k moments, and what backward keeps of the share.
// Row tables that are dealt out (parts/rows/row_shares.h) are the exception: a rank holds 1/N of their rows and of their moments.
// Others lie once on each host, and its ranks divide their updates (parts/rows/host_rows.h).
// How buckets are filled and sent: parts/replicas/replicated_data.h.
#include "strategies/ddp.h"

#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/replicas/replicated_data.h"
#include "strategies/parts/rows/host_rows.h"
#include "strategies/parts/rows/row_share_layers.h"

namespace convoy {

std::unique_ptr<Strategy> make_ddp(const Options& options) {
  MeshParts parts;
  parts.every = sync_policy(options.json()).every;
  parts.micro_batches = options.integer("micro_batches");
  if (options.has("graph")) parts.graph = options.text("graph");
  parts.runner = [options](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    PartRequest request = part_request(context, options);
    request.rows = std::make_shared<RowRule>(context.config, context.axis("data")->size(), context.rank == 0);
    request.layers = row_share_layers(context);
    if (!request.layers) request.layers = host_row_layers(context);
    return make_whole_runner(context, std::move(model), std::move(loss), std::move(request));
  };
  parts.data = [options = replicated_options(options)](const Context& context, const std::vector<ModelPart*>& held) {
    return std::make_unique<ReplicatedData>(context, held, options);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
