// Parameters that are sharded over the ranks of a tensor group. Their initial values equal those of the whole tensor
// bit for bit.
#pragma once
#include <string>
#include <utility>

#include "strategies/common/layers/default_layers.h"

namespace convoy {

// DimensionShard: sharding of one dimension of a tensor over the ranks of a tensor group. Plain data.
struct DimensionShard {
  int64_t whole = 0;  // elements
  int64_t parts = 1;  // equal ranges that are sharded separately: 3 for fused queries, keys and values
  int rank = 0;       // this rank
  int size = 1;       // size of the group

  int64_t part() const { return whole / parts; }
  bool even() const { return part() % size == 0; }
  // Returns [begin, end) of each part on rank `of`. Shards differ by at most one; the first ones are larger.
  std::pair<int64_t, int64_t> share(int of) const { return share_of(part(), of, size); }
  std::pair<int64_t, int64_t> share() const { return share(rank); }
  // Returns the elements of all parts on this rank.
  int64_t length() const {
    const auto [begin, end] = share();
    return parts * (end - begin);
  }
};

// TensorShard: sharded dimension of a tensor, 0 or 1, and its sharding.
struct TensorShard {
  int64_t dimension = 0;
  DimensionShard shard;
};

// Returns the boxes of the whole tensor that are local to this rank: one per part.
std::vector<LocalPiece> local_pieces(at::IntArrayRef shape, const TensorShard& shard);

// `shape`: shape of the whole tensor, with one or two dimensions. Its sharded dimension must have length
// `shard.shard.whole`. Every rank counts it.
ParameterPtr make_sharded_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape,
                                    const TensorShard& shard, const Init& init);

}  // namespace convoy
