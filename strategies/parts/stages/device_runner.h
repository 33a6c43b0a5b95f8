// The Runner of a rank with several devices: consecutive blocks on each, and a thread for each, which executes the device's
// list of a schedule (parts/stages/schedule.h, placed_schedule). Activations and gradients are handed over in the process, and copied
// where devices have memory of their own.
//
// On the CPU a device is a set of cores, to which its thread is bound; Context::tell gets the cores that the kernel named, and
// the blocks. Hooks are called in the devices' threads: that of the loss in the last block's, with the loss on the rank's main
// device; those of different parts may come at once. What a block throws in any of them ends all, and the rank's thread throws
// it again.
#pragma once
#include <memory>

#include "strategies/parts/runner.h"

namespace convoy {

struct DeviceOptions {
  Options section;            // where `placement` stands, see place_blocks
  int64_t micro_batches = 1;  // slices of an evaluation batch
};

// Throws ConfigError for blocks that do not fit the model.
std::unique_ptr<Runner> make_device_runner(const Context& context, ModelPtr model,
                                           std::shared_ptr<const LossFunction> loss, const DeviceOptions& options,
                                           const PartRequest& base = {});

}  // namespace convoy
