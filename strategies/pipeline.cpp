// pipeline: each rank of the axis `pipeline` has consecutive blocks of the model, and the micro-batches of a step go through
// the ranks one behind the other.
//
// Replicated: tensors that are tied over stages. Sharded: blocks, with their parameters, gradients, moments and buffers.
// With p ranks, m micro-batches of r rows and b bytes of a row at a boundary: sent per step by a rank r·m·b forward to the
// next and as much back to the one before; per update two numbers for the norm, and 2·(n−1)/n of a tied tensor's gradient by
// each of the n ranks that hold it. Idle, with stages alike: (p−1)/(m+p−1) of a step, 1/v of that time with v stages a rank.
// Memory per rank: its P'·e·(2 + k), and what backward keeps of its live micro-batches: at most p − rank of them (1f1b),
// m (gpipe), or 2·(p−1−rank) + (v−1)·p + 1 of 1/v stages (interleaved).
// Schedules: parts/stages/schedule.h; messages: parts/stages/rank_link.h; ties: parts/stages/ties.h.
#include "strategies/pipeline.h"

#include <limits>

#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/replicas/replicated_data.h"
#include "strategies/parts/stages/pipeline_runner.h"

namespace convoy {

std::unique_ptr<Strategy> make_pipeline(const Options& options) {
  MeshParts parts;
  parts.every = options.section("sync").integer("every");
  parts.micro_batches = options.integer("micro_batches");
  parts.runner = [options](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    return make_pipeline_runner(context, std::move(model), std::move(loss), pipeline_options(options),
                                part_request(context, options));
  };
  // Nobody shares a stage: one bucket, and no message of it.
  ReplicatedOptions whole;
  whole.sync = sync_policy(options.json());
  whole.first_bytes = whole.cap_bytes = std::numeric_limits<double>::infinity();
  parts.data = [whole](const Context& context, const std::vector<ModelPart*>& held) {
    return std::make_unique<ReplicatedData>(context, held, whole);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
