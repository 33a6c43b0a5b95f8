// Parameters that the ranks of a tensor group hold in pieces. Initial values are those of the slice of the whole, bit
// for bit.
#pragma once
#include <string>

#include "strategies/parts/plain_layers.h"
#include "strategies/parts/tensor/dimension_cut.h"

namespace convoy {

// Which dimension of a tensor is cut, 0 or 1, and how.
struct TensorCut {
  int64_t dimension = 0;
  DimensionCut cut;
};

// Which boxes of the whole this rank holds: one per part.
std::vector<HeldPiece> held_pieces(at::IntArrayRef shape, const TensorCut& cut);

// `shape` is the whole's, of one or two dimensions; its cut one must be `cut.cut.whole` long. Counted on every rank.
ParameterPtr make_cut_parameter(LayerStore& store, const std::string& name, at::IntArrayRef shape, const TensorCut& cut,
                                const Init& init);

}  // namespace convoy
