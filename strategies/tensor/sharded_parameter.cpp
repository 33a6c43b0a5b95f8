#include "strategies/tensor/sharded_parameter.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "core/base/error.h"
#include "core/tensors/init.h"

namespace convoy {

std::vector<LocalPiece> local_pieces(at::IntArrayRef shape, const TensorShard& shard) {
  const auto [begin, end] = shard.shard.share();
  const auto dimension = size_t(shard.dimension);
  std::vector<LocalPiece> pieces;
  for (int64_t part = 0; part < shard.shard.parts; ++part) {
    LocalPiece piece;
    piece.piece = Piece::whole(shape);
    piece.piece.offset[dimension] = part * shard.shard.part() + begin;
    piece.piece.length[dimension] = end - begin;
    piece.begin = shard.dimension == 0 ? part * (end - begin) : 0;
    piece.end = shard.dimension == 0 ? piece.begin + end - begin : shape[0];
    pieces.push_back(piece);
  }
  return pieces;
}

namespace {

// Fills every range of the value that is contiguous in the whole.
void fill_pieces(const at::Tensor& value, at::IntArrayRef shape, const std::string& name,
                 const std::vector<LocalPiece>& held, const TensorShard& shard, const Init& init, uint64_t seed) {
  const Fans fans = fans_of(shape);
  const auto fill = [&](const at::Tensor& range, int64_t first) {
    fill_initial(range, init, fans, seed, name, uint64_t(first));
  };
  for (const LocalPiece& local : held) {
    if (shard.dimension == 0) {
      const int64_t width = shape.size() == 1 ? 1 : shape[1];
      fill(value.narrow(0, local.begin, local.end - local.begin), local.piece.offset[0] * width);
      continue;
    }
    for (int64_t row = 0; row < shape[0]; ++row) fill(value.select(0, row), row * shape[1] + local.piece.offset[1]);
  }
}

}  // namespace

ParameterPtr make_sharded_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape,
                                    const TensorShard& shard, const Init& init) {
  check_sizes(name, shape);
  CONVOY_CHECK(!shape.empty() && shape.size() <= 2 && shard.dimension < int64_t(shape.size()) &&
                   shape[size_t(shard.dimension)] == shard.shard.whole &&
                   (shard.dimension == 0 || shard.shard.parts == 1),
               name, " of ", shape, " is sharded along ", shard.dimension, " of ", shard.shard.whole);
  const std::vector<LocalPiece> held = local_pieces(shape, shard);
  std::vector<int64_t> local = shape.vec();
  local[size_t(shard.dimension)] = shard.shard.length();
  const at::Tensor value = at::empty(local, at::TensorOptions(store.dtype));
  fill_pieces(value, shape, name, held, shard, init, store.seed);
  ParameterPtr parameter = add_parameter(store, name, value.to(store.device));
  parameter->counted = true;  // no other rank has this shard
  parameter->held = held;
  return parameter;
}

}  // namespace convoy
