// Which blocks are on which of a rank's devices. Pure functions. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/topology.h"
#include "strategies/parts/stages/stages.h"

namespace convoy {

// Options `devices` and `placement`. Devices are written as parts/devices_entry.h reads them.
std::vector<Option> placement_options();

// The devices that are listed, else those that placement names, in order; empty: left to the strategy. Throws ConfigError for
// what the host does not have, for a GPU or core given twice, and for a placement on what `devices` does not list.
std::vector<DevicePlan> listed_devices(const Options& options, const Host& host);

// Consecutive blocks on one of the rank's devices.
struct PlacedBlocks {
  BlockRange blocks;
  int device = 0;  // index into the rank's devices
};
// In the model's order. Throws ConfigError at `placement` for gaps, overlaps and blocks that are not there, and for more
// devices than blocks where placement is auto. `own_memory`: devices have memory of their own, so that auto balances that as
// well as time.
std::vector<PlacedBlocks> place_blocks(const Options& options, int devices, bool own_memory, const Description& model);
// What of it can be said without the model.
void check_placement(const Options& options);
// Devices that are listed and that no placement names.
std::vector<std::string> idle_devices(const Options& options);

}  // namespace convoy
