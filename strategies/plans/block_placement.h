// Assignment of blocks to a rank's devices. Pure functions, without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/plan.h"
#include "strategies/plans/stages.h"

namespace convoy {

// Options `devices` and `placement`. options/devices.h parses the devices.
std::vector<Option> placement_options();

// The devices in `devices`, else those in `placement`, in order. Empty: the strategy chooses.
// Throws ConfigError for a device that the host lacks, for a GPU or core given twice, and for a placement on a device
// that is not in `devices`.
std::vector<DevicePlan> listed_devices(const Options& options, const Host& host);

// Consecutive blocks on one of the rank's devices.
struct PlacedBlocks {
  BlockRange blocks;
  int device = 0;  // index into the rank's devices
};
// Returns the placement in the model's order. Throws ConfigError at `placement` for gaps, overlaps and missing blocks,
// and for more devices than blocks with `auto`. `separate_memory`: each device has its own memory, so `auto` balances
// memory too.
std::vector<PlacedBlocks> place_blocks(const Options& options, int devices, bool separate_memory,
                                       const ModelDescription& model);
// Checks that do not need the model.
void check_placement(const Options& options);
// Devices that `devices` lists and `placement` does not use.
std::vector<std::string> idle_devices(const Options& options);

}  // namespace convoy
