// pipeline: each rank of the axis `pipeline` has consecutive blocks of the model. The micro-batches of a step flow
// through the ranks.
//
// Replicated: parameters that are tied over stages. Sharded: blocks, with their parameters, gradients, moments and
// buffers.
// p ranks, m micro-batches of r rows, b bytes of a row at a boundary. A rank sends r·m·b per step to the next rank and
// as much back to the previous one.
// Per update it sends three numbers (the norm, and counts of non-finite values), and 2·(n−1)/n of the gradient of a
// parameter that n ranks tie.
// Bubble, with equal stages: (p−1)/(m+p−1) of a step; with v virtual stages a rank, 1/v of that.
// Memory of a rank with P parameters of e bytes and k moments: P·e·(2 + k), and the activations of live micro-batches:
// at most p − rank of them (1f1b), m (gpipe), or 2·(p−1−rank) + (v−1)·p + 1 of 1/v stages (interleaved).
// Schedules: strategies/plans/schedule.h; messages: strategies/stages/pipeline_runner.cpp; ties:
// strategies/stages/stage_loop.h.
#include "core/strategy.h"

#include <limits>

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/replicas/replicated_data.h"
#include "strategies/stages/runners.h"

namespace convoy {

std::unique_ptr<Strategy> make_pipeline(const Options& options) {
  MeshComponents components{step_options(options)};
  components.runner = [stages = pipeline_options(options), step = components.options](const Context& context,
                                                                                      ModelPtr model, LossPtr loss) {
    return make_pipeline_runner(context, std::move(model), std::move(loss), stages, step.micro_batches,
                                part_request(context, step));
  };
  // No other rank has this stage: one bucket, and no message for it.
  ReplicatedOptions whole{components.options};
  whole.first_bytes = whole.cap_bytes = std::numeric_limits<double>::infinity();
  components.data = [whole](const Context& context, const std::vector<ModelPart*>& model_parts) {
    return std::make_unique<ReplicatedData>(context, model_parts, whole);
  };
  return make_mesh_strategy(std::move(components));
}

}  // namespace convoy
