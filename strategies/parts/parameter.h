// One trained tensor of a rank's model, and where its gradient goes.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/state.h"

namespace convoy {

// Rows [begin, end) of dimension 0 of a parameter's value, and which box of the whole tensor they are.
struct HeldPiece {
  int64_t begin = 0, end = 0;
  Piece piece;
};

class RowTable;  // strategies/parts/rows/row_table.h

struct Parameter {
  std::string name;      // canonical
  at::Tensor value;      // leaf; its storage may be moved to a flat buffer, the tensor object stays
  at::Tensor gradient;   // shape of value: where backward is to write; undefined: autograd's own way
  bool written = false;  // `gradient` holds something of this accumulation; until then a write overwrites what is there
  bool reached = false;  // a gradient has come to it, ever
  bool awaited = false;  // a product that is a part of the gradient waits in ForwardState::later
  bool prompt = false;   // none may: another part takes the gradient as soon as it is told those of this one's inputs
  bool foreign = false;  // made by a block itself and not by Layers
  // Writes elements first, first + 1, … (row-major) of the initial values. Set where `value` has no memory yet
  // (LayerStore::deferred): whoever stores it makes what it holds; and where several ranks make one table together (host_rows.h).
  std::function<void(const at::Tensor& out, int64_t first)> initial;
  bool products_only = false;  // layers only multiply with it: under autocast a copy in the narrow dtype does as well
  // Where ranks of one replica share a model among them (tensor and pipeline groups; never along the data axis):
  std::vector<HeldPiece> held;      // none: the whole; several where a fused product is cut part by part
  bool counted = true;              // exactly one of the ranks that hold the same piece counts it in norms and owns it
  std::shared_ptr<RowTable> table;  // it is an embedding whose gradients are rows, apart from all else; null: it is not
  CommunicatorPtr partial;          // the gradient is this rank's part of a sum over this group; null: it is whole
};
using ParameterPtr = std::shared_ptr<Parameter>;

struct NamedBuffer {
  std::string name;
  at::Tensor value;  // updated in place by forward
};

// Products that give weights' gradients and wait until somebody has been told the gradients of the part's inputs, in the order
// in which they would have been computed (zero bubble: Qi et al., 2023).
struct WaitingProducts {
  std::vector<std::function<void()>> list;
  double bytes = 0;  // of what they keep alive
  double most = 0;   // beyond that, products are computed at once
};

// What layers must know of the forward under way. Owned by the rank's Layers; the strategy sets it before each forward.
struct ForwardState {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t rows = 0;       // of this rank's share
  int64_t first_row = 0;  // of it, within the global batch
  int rank = 0;           // keys fast randomness
  bool exact = true;      // random draws are functions of the global row; else of (step, layer, rank)
  bool training = false;
  mutable bool drew = false;         // something was drawn whose key the host had chosen: no graph can draw it again
  bool collecting = false;           // the strategy's own backward runs: gradients are written to Parameter::gradient
  WaitingProducts* later = nullptr;  // null: nobody waits for the gradients of the part's inputs
  at::Tensor loss_scale;  // [1]: what backward multiplies the loss with (parts/loss_scaler.h); undefined: nothing
};

}  // namespace convoy
