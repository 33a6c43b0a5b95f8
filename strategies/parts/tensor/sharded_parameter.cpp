#include "strategies/parts/tensor/sharded_parameter.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "core/error.h"
#include "strategies/parts/init.h"

namespace convoy {

std::vector<HeldPiece> held_pieces(at::IntArrayRef shape, const TensorCut& cut) {
  const auto [begin, end] = cut.cut.share();
  const auto dimension = static_cast<size_t>(cut.dimension);
  std::vector<HeldPiece> held;
  for (int64_t part = 0; part < cut.cut.parts; ++part) {
    HeldPiece piece;
    piece.piece = Piece::whole(shape);
    piece.piece.offset[dimension] = part * cut.cut.part() + begin;
    piece.piece.length[dimension] = end - begin;
    piece.begin = cut.dimension == 0 ? part * (end - begin) : 0;
    piece.end = cut.dimension == 0 ? piece.begin + end - begin : shape[0];
    held.push_back(piece);
  }
  return held;
}

namespace {

// Every range of the value that lies together in the whole.
void fill_pieces(const at::Tensor& value, at::IntArrayRef shape, const Parameter& parameter, const TensorCut& cut,
                 const Init& init, uint64_t seed) {
  const Fans fans = fans_of(shape);
  const auto fill = [&](const at::Tensor& range, int64_t first) {
    fill_initial(range, init, fans, seed, parameter.name, static_cast<uint64_t>(first));
  };
  for (const HeldPiece& held : parameter.held) {
    if (cut.dimension == 0) {
      const int64_t width = shape.size() == 1 ? 1 : shape[1];
      fill(value.narrow(0, held.begin, held.end - held.begin), held.piece.offset[0] * width);
      continue;
    }
    for (int64_t row = 0; row < shape[0]; ++row) fill(value.select(0, row), row * shape[1] + held.piece.offset[1]);
  }
}

}  // namespace

ParameterPtr make_cut_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape, const TensorCut& cut,
                                const Init& init) {
  check_sizes(name, shape);
  CONVOY_CHECK(!shape.empty() && shape.size() <= 2 && cut.dimension < static_cast<int64_t>(shape.size()) &&
                   shape[static_cast<size_t>(cut.dimension)] == cut.cut.whole &&
                   (cut.dimension == 0 || cut.cut.parts == 1),
               name, " of ", shape, " is cut along ", cut.dimension, " of ", cut.cut.whole);
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->held = held_pieces(shape, cut);
  std::vector<int64_t> local = shape.vec();
  local[static_cast<size_t>(cut.dimension)] = cut.cut.length();
  const at::Tensor value = at::empty(local, at::TensorOptions(store.dtype));
  fill_pieces(value, shape, *parameter, cut, init, store.seed);
  parameter->value = value.to(store.device);
  parameter->value.set_requires_grad(true);
  record_parameter(store, parameter);
  return parameter;
}

}  // namespace convoy
