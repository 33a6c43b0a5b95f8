// model_parallel: one rank with several devices. Each device has consecutive blocks of the model. Activations pass from
// one device to the next, gradients back.
//
// Replicated: nothing; on GPUs a parameter that is tied over devices. Sharded: blocks, over the devices of the rank.
// Sent to other ranks: nothing. Copied per step if devices have separate memory: R·b forward and R·b back, with R rows
// of a step and b bytes of a row at a boundary.
// Memory: P·e·(2 + k) over all devices, and the activations of live micro-batches: at most S − s of them at stage s of
// S.
// With one micro-batch a step the devices run one after the other. With m of them each of d devices is idle for
// (d−1)/(m+d−1) of the time.
#include "core/strategy.h"

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/replicas/local_updates.h"
#include "strategies/stages/runners.h"

namespace convoy {

std::unique_ptr<Strategy> make_model_parallel(const Options& options) {
  MeshComponents parts{step_options(options)};
  parts.runner = [options, step = parts.options](const Context& context, ModelPtr model, LossPtr loss) {
    return make_device_runner(context, std::move(model), std::move(loss), options, part_request(context, step));
  };
  parts.data = [every = parts.options.sync.every](const Context& context, const std::vector<ModelPart*>& model_parts) {
    return std::make_unique<LocalData>(context, model_parts, every);
  };
  return make_mesh_strategy(std::move(parts));
}

}  // namespace convoy
