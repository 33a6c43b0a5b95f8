// Assignment of blocks to stages: from a list, or balanced by the cost of blocks. Pure functions, without LibTorch, so
// every rank and the planner get the same result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/base/plan.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

struct DeviceOptions;    // options/devices.h
struct PipelineOptions;  // options/pipeline.h

struct BlockRange {
  int64_t begin = 0, end = 0;  // blocks [begin, end)
  int64_t size() const { return end - begin; }
};
std::string to_text(const BlockRange& range);  // "0-3", "4": the spelling of the configuration

// Parses "3" or "0-3" of an option, both ends included. Throws ConfigError at the key.
BlockRange parse_blocks(const Options& options, const std::string& key, const std::string& text);

// Returns the index of the range with this block. Stages come from the option `stages`: `auto`, or a list with one item
// per stage in the model's order. An item is a number of blocks ([4, 2]) or a range (["0-3", "4-5"]).
size_t stage_of(const std::vector<BlockRange>& stages, int64_t block);
Option stages_option();
// Parses `stages` without the model; empty for `auto`. Throws ConfigError at the key for a stage without blocks, a gap
// or an overlap.
std::vector<BlockRange> listed_stages(const PipelineOptions& options);
// Returns the blocks of `stages` stages. Throws ConfigError at `stages` if the list has a different length, names
// missing blocks, or leaves blocks without a stage. Throws at `stages`, `virtual`, `schedule` or `mesh.pipeline` for
// more stages than blocks.
std::vector<BlockRange> stage_ranges(const PipelineOptions& options, int stages, const ModelDescription& model);

// Returns one line per stage: "stage 0 on rank 0: blocks 0-2 (embed to block1), 1234 parameters". `on`: the owner of
// each stage.
std::string stages_text(const std::vector<BlockRange>& stages, const std::vector<std::string>& on,
                        const ModelDescription& model);

// Divides blocks into `stages` consecutive non-empty ranges with the smallest maximal cost. Requires as many blocks as
// stages.
std::vector<BlockRange> balanced(const std::vector<double>& costs, int stages);
// Returns the relative compute time of each block: its measured FLOPs, or else the elements of weights that multiply
// activations, or else equal values.
std::vector<double> block_costs(const ModelDescription& model);
// Returns each block's share of the time of a pass: measured, or else by block_costs. The sum is 1.
std::vector<double> time_shares(const ModelDescription& model);
// Returns the sum of the shares of `blocks`.
double total_share(const std::vector<double>& shares, const BlockRange& blocks);
// Returns the time share of each stage on one rank, if `tensor` ranks shard its layers.
std::vector<double> stage_times(const ModelDescription& model, const std::vector<BlockRange>& stages, int tensor);

// --- Assignment of blocks to a rank's devices ---

// Returns the options `devices` and `placement`. options/devices.h parses the devices.
std::vector<Option> placement_options();

// Returns the devices in `devices`, or else those in `placement`, in order. Empty: the strategy chooses. Throws
// ConfigError for a device that the host lacks and for a repeated GPU or core. Also throws it for a placement on a
// device that is not in `devices`.
std::vector<DevicePlan> listed_devices(const DeviceOptions& options, const Host& host);

// Consecutive blocks on one device of the rank.
struct PlacedBlocks {
  BlockRange blocks;
  int device = 0;  // index into the rank's devices
};
// Returns the placement in the model's order. Throws ConfigError at `placement` for gaps, overlaps and missing blocks,
// and for more devices than blocks with `auto`. `separate_memory`: each device has separate memory, so `auto` balances
// memory too.
std::vector<PlacedBlocks> place_blocks(const DeviceOptions& options, int devices, bool separate_memory,
                                       const ModelDescription& model);
// Makes the checks that do not need the model.
void check_placement(const DeviceOptions& options);
// Returns devices that `devices` lists and `placement` does not use.
std::vector<std::string> idle_devices(const DeviceOptions& options);

}  // namespace convoy
