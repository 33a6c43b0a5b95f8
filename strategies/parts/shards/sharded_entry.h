// What strategies whose data axis shards share without LibTorch: options and formulas.
#pragma once
#include "strategies/catalogue.h"

namespace convoy {

// shard, reshard_after_forward, units.
std::vector<Option> shard_options();
// These, overlap, and buffer_options().
std::vector<Option> sharded_data_options();

// Per rank, of a job whose N ranks divide P bytes of parameters, in m micro-batches and `every` steps an update, with k
// moments. A unit is a block's own parameters, or a tensor that several blocks use. Sent per step, f being (N−1)/N:
//   optimizer   2·f·P ÷ every
//   gradients   f·P·m + f·P ÷ every
//   parameters  f·m·P, and f·m·G for gathering: a unit that u blocks use counts 2·u times in G (u times without resharding),
//               once less where the model's last block uses it, and with half its bytes where it is gathered in 16 bits
// beside two all-reduces of a few bytes per update. Held: parameters P (P/N where they are sharded, and what two neighbouring
// blocks use; without resharding G's units once each), gradients P/N and what two neighbouring blocks use or blocks on both
// sides of them share (P for `optimizer`; one block without resharding, since blocks are given back as fast as their
// neighbours' gradients come), moments k·P/N. One block in place of two without overlap; and 1/N of the largest unit for sums
// that cannot be made in place (`optimizer`, or several to an update).
// `ends`: the model ends with these blocks, so that the last one's backward follows its forward and it stays gathered.
std::vector<RankCost> sharded_costs(const Job& job, const Description& description, bool ends = true);

}  // namespace convoy
