// What strategies whose data axis shards share without LibTorch: options and formulas.
#pragma once
#include "strategies/catalogue.h"

namespace convoy {

// shard, reshard_after_forward, units.
std::vector<Option> shard_options();
// These, overlap, and buffer_options().
std::vector<Option> sharded_data_options();

// Per rank, of a job whose N ranks divide P bytes of parameters (p of the block b), in m micro-batches and `every` steps an
// update, with k moments. Sent per step, f being (N−1)/N:
//   optimizer   2·f·P ÷ every
//   gradients   f·P·m + f·P ÷ every
//   parameters  f·m·(3·P − p of the last block); without resharding 2·f·P·m
// beside two all-reduces of a few bytes per update. Held: parameters P (P/N and two neighbouring blocks where they are
// sharded, P/N + P without resharding), gradients P/N and two neighbouring blocks (P for `optimizer`; P/N and one block
// without resharding, since blocks are given back as fast as their neighbours' gradients come), moments k·P/N.
// `ends`: the model ends with these blocks, so that the last one's backward follows its forward and it stays gathered.
std::vector<RankCost> sharded_costs(const Job& job, const Description& description, bool ends = true);

}  // namespace convoy
