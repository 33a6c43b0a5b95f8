// model_parallel: one rank with several devices, each with consecutive blocks of the model; activations are handed from one
// to the next, gradients back.
//
// Replicated: nothing, but on GPUs a tensor that is tied over devices. Sharded: blocks, over the rank's devices. Sent to other
// ranks: nothing. Copied per step where devices have memory of their own, with R rows of a step and b bytes of a row at a
// boundary: R·b forward and R·b back. Memory: P·e·(2 + k) over all devices, and what backward keeps of live micro-batches: at
// most S − s of those at stage s of S. With one micro-batch a step the devices take turns; with m of them each of d devices is
// idle for (d−1)/(m+d−1) of the time.
#include "strategies/model_parallel.h"

#include "strategies/parts/mesh_strategy.h"
#include "strategies/parts/replicas/local_data.h"
#include "strategies/parts/stages/device_runner.h"

namespace convoy {

std::unique_ptr<Strategy> make_model_parallel(const Options& options) {
  MeshParts parts;
  parts.every = options.section("sync").integer("every");
  parts.micro_batches = options.integer("micro_batches");
  const DeviceOptions devices{options, parts.micro_batches};
  parts.runner = [options, devices](const Context& context, ModelPtr model, std::shared_ptr<const LossFunction> loss) {
    return make_device_runner(context, std::move(model), std::move(loss), devices, part_request(context, options));
  };
  parts.data = [every = parts.every](const Context& context, const std::vector<ModelPart*>& held) {
    return std::make_unique<LocalData>(context, held, every);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
