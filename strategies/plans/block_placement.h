// Assignment of blocks to a rank's devices. Pure functions, without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/plan.h"
#include "strategies/plans/stages.h"

namespace convoy {

// Returns the options `devices` and `placement`. options/devices.h parses the devices.
std::vector<Option> placement_options();

// Returns the devices in `devices`, or else those in `placement`, in order. Empty: the strategy chooses. Throws
// ConfigError for a device that the host lacks, for a repeated GPU or core, and for a placement on a device that is not
// in `devices`.
std::vector<DevicePlan> listed_devices(const Options& options, const Host& host);

// Consecutive blocks on one device of the rank.
struct PlacedBlocks {
  BlockRange blocks;
  int device = 0;  // index into the rank's devices
};
// Returns the placement in the model's order. Throws ConfigError at `placement` for gaps, overlaps and missing blocks,
// and for more devices than blocks with `auto`. `separate_memory`: each device has separate memory, so `auto` balances
// memory too.
std::vector<PlacedBlocks> place_blocks(const Options& options, int devices, bool separate_memory,
                                       const ModelDescription& model);
// Makes the checks that do not need the model.
void check_placement(const Options& options);
// Returns devices that `devices` lists and `placement` does not use.
std::vector<std::string> idle_devices(const Options& options);

}  // namespace convoy
