// Devices of one rank as users name them, and which blocks go where. Pure functions. Without LibTorch.
//
// "cuda:1" is the second GPU of the rank's host. "cores:0" is the first core that the run may use there, "cores:2-3" the
// third and fourth together: counted as GPUs are, so that the same file runs wherever there are as many.
#pragma once
#include <string>
#include <vector>

#include "core/topology.h"
#include "strategies/parts/stages.h"

namespace convoy {

// Options `devices` and `placement`.
std::vector<Option> device_options();

// Devices in the order in which they are listed, or in which placement names them; empty: left to the strategy.
// Throws ConfigError for a name that is none, for one given twice, and for a placement on what `devices` does not list.
std::vector<std::string> device_names(const Options& options);

// The devices of `names` on a host. Throws ConfigError for a GPU or core that is not there, and for cores given twice.
std::vector<DevicePlan> plan_devices(const Options& options, const std::vector<std::string>& names, const Host& host,
                                     bool gpus);

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

}  // namespace convoy
