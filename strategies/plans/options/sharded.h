// Strategies with a sharded data axis, without LibTorch: options and cost formulas.
#pragma once
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/data_axis.h"

namespace convoy {

enum class Shard { optimizer, gradients, parameters };
const std::string& name_of(Shard shard);
Shard shard_of(const Options& strategy);  // reads the option `shard`

// Typed values of a section with sharded_data_options() and sync_option().
struct ShardedStepOptions : StepOptions {
  Shard shard = Shard::parameters;
  bool reshard = true;     // parameters: free values after forward too, not only after backward
  bool by_tensor = false;  // a unit is one tensor instead of one block
};
ShardedStepOptions sharded_step_options(const Options& strategy);

// Returns the options shard, reshard_after_forward, units.
std::vector<Option> shard_options();
// Returns shard_options(), overlap, and buffer_options().
std::vector<Option> sharded_data_options();

// Returns the cost per rank of a job. N ranks shard P bytes of parameters, with m micro-batches, `every` steps per
// update, and k moments. A unit is the parameters of one block alone, or a tensor that several blocks use.
//
// Sent per step, with f = (N−1)/N, plus two all-reduces of a few bytes per update:
//   optimizer   2·f·P ÷ every
//   gradients   f·P·m + f·P ÷ every
//   parameters  f·m·P, and f·m·G for gathering: a unit that u blocks use counts 2·u times in G (u times without
//               resharding). It counts once less if the model's last block uses it, and half if it is gathered in half
//               precision
// Memory:
//   parameters  P; P/N if sharded, plus two neighbouring blocks; without resharding plus the units of G once each
//   gradients   P/N plus two neighbouring blocks and the tied tensors that blocks before and after them use; P for
//               `optimizer`; without resharding plus only one block, because backward frees a gathered block for the
//               gradients of the next one
//   moments     k·P/N
// Without overlap: one neighbouring block instead of two. Sums that cannot be in place (`optimizer`, or several per
// update) need 1/N of the largest unit.
// `ends`: these are the last blocks of the model. The backward of the last one follows its forward, so it stays
// gathered.
std::vector<RankCost> sharded_costs(const JobPlan& job, const ModelDescription& description, bool ends = true);

}  // namespace convoy
