// StepRunner of a rank with several devices. Each device has consecutive blocks and a thread, which executes the
// device's part of a schedule (strategies/plans/schedule.h, placed_schedule). Activations and gradients pass between
// threads; they are copied if devices have separate memory.
//
// On the CPU a device is a set of cores, and its thread is bound to them. Context::add_to_summary gets the actual cores
// and the blocks.
// Hooks run in the devices' threads, maybe at once for different parts. The loss hook runs in the thread of the last
// block, with the loss on the rank's main device. An exception in any thread stops all of them; the rank's thread
// rethrows it.
#pragma once
#include <memory>

#include "strategies/common/step/mesh_strategy.h"

namespace convoy {

// `options`: the section with `placement` (place_blocks) and `micro_batches`. Throws ConfigError if blocks do not match
// the model.
std::unique_ptr<StepRunner> make_device_runner(const Context& context, ModelPtr model, LossPtr loss,
                                               const Options& options, const PartRequest& base = {});

}  // namespace convoy
