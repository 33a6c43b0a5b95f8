// Which blocks a stage has: given by a list, or balanced by what blocks cost. Pure functions, the same on every rank and
// before any rank starts. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"
#include "strategies/catalogue.h"

namespace convoy {

struct BlockRange {
  int64_t begin = 0, end = 0;  // blocks [begin, end)
  int64_t size() const { return end - begin; }
};
std::string to_text(const BlockRange& range);  // "0-3", "4": as users write them

// Text "3" or "0-3" of an option, both ends included. Throws ConfigError at the key.
BlockRange parse_blocks(const Options& options, const std::string& key, const std::string& text);

// The option `stages`: `auto`, or a list with one item a stage, in the model's order: how many blocks it has ([4, 2]), or
// which (["0-3", "4-5"]).
Option stages_option();
// What it says, as far as that is known without the model; empty for `auto`. Throws ConfigError at the key for a stage
// without blocks, a gap or an overlap.
std::vector<BlockRange> listed_stages(const Options& options);
// The blocks of `stages` stages. Throws ConfigError at `stages` for another number of them in the list and for blocks that
// the model does not have or that no stage has; for more stages than blocks at the key that asks for them (`stages`,
// `virtual`, `schedule` or `mesh.pipeline`).
std::vector<BlockRange> stage_ranges(const Options& options, int stages, const Description& model);

// "stage 0 on rank 0: blocks 0-2 (embed to block1), 1234 parameters", a line a stage; `on`: who has each.
std::string stages_text(const std::vector<BlockRange>& stages, const std::vector<std::string>& on,
                        const Description& model);

// Cuts blocks of these costs into `stages` runs of at least one whose most expensive one is as cheap as can be; wants as
// many blocks as stages.
std::vector<BlockRange> balanced(const std::vector<double>& costs, int stages);
// What a block costs in time, relative to others: its measured FLOPs, else the elements of the weights that activations are
// multiplied with, else all alike.
std::vector<double> block_costs(const Description& model);
// What a block takes of a pass's time: as measured, else by block_costs. The sum is 1.
std::vector<double> time_shares(const Description& model);
// The same of some blocks.
double time_share(const std::vector<double>& shares, const BlockRange& blocks);
// The same of each stage, on one rank of `tensor` ranks that share out its cut layers.
std::vector<double> stage_times(const Description& model, const std::vector<BlockRange>& stages, int tensor);

}  // namespace convoy
