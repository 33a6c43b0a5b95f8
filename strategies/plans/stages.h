// Assignment of blocks to stages: from a list, or balanced by the cost of blocks. Pure functions, without LibTorch, so
// every rank and the planner get the same result.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

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
std::vector<BlockRange> listed_stages(const Options& options);
// Returns the blocks of `stages` stages. Throws ConfigError at `stages` if the list has a different length, names
// missing blocks, or leaves blocks without a stage. Throws at `stages`, `virtual`, `schedule` or `mesh.pipeline` for
// more stages than blocks.
std::vector<BlockRange> stage_ranges(const Options& options, int stages, const ModelDescription& model);

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

}  // namespace convoy
