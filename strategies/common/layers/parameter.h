// A trained tensor of a rank's model, and the memory of its gradient.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/state.h"

namespace convoy {

// Rows [begin, end) of dimension 0 of a parameter's value, and their box in the whole tensor.
struct LocalPiece {
  int64_t begin = 0, end = 0;
  Piece piece;
};

class SparseTable;  // strategies/common/layers/sparse_table.h

struct Parameter {
  std::string name;      // canonical
  at::Tensor value;      // leaf; its storage may move to a flat tensor, but the tensor object stays
  at::Tensor gradient;   // shape of value: backward writes here; undefined: autograd keeps the gradient
  bool written = false;  // `gradient` has values of this accumulation; if false, the next write overwrites
  bool reached = false;  // it has received a gradient at least once
  bool awaited = false;  // a product for its gradient waits in ForwardState::later
  bool prompt = false;   // no product may wait: another part uses the gradient once this part's input gradients exist
  bool foreign = false;  // created by a block and not by Layers
  // Writes elements first, first + 1, … (row-major) of the initial values. Set if `value` has no memory yet
  // (LayerStore::deferred), and if several ranks initialise one table together (sparse/shared_rows.h).
  std::function<void(const at::Tensor& out, int64_t first)> initial;
  bool products_only = false;  // layers only multiply with it, so autocast may replace it by a half-precision copy
  // For ranks that share one replica (tensor and pipeline groups; never along the data axis):
  std::vector<LocalPiece> held;  // pieces of the whole tensor; empty: the whole; several for a fused product
  bool counted = true;  // true on one of the ranks with the same piece; that rank counts it in norms and owns it
  // Set for a sparse embedding, which gets its gradients and updates separately; null: dense.
  std::shared_ptr<SparseTable> table;
  CommunicatorPtr partial;  // the gradient is this rank's term of a sum over this group; null: it is complete
};
using ParameterPtr = std::shared_ptr<Parameter>;

struct NamedBuffer {
  std::string name;
  at::Tensor value;  // updated in place by forward
};

// Products for weight gradients that run after the gradients of the part's inputs have been sent, in the order of
// backward (zero bubble: Qi et al., 2023).
struct WaitingProducts {
  std::vector<std::function<void()>> list;
  double bytes = 0;  // bytes of tensors that they keep alive
  double most = 0;   // limit of `bytes`; further products run at once
};

// State of the running forward for layers. The rank's Layers hold it; the strategy sets it before each forward.
struct ForwardState {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t rows = 0;       // rows of this rank's share
  int64_t first_row = 0;  // index of the share's first row in the global batch
  int rank = 0;           // keys fast randomness
  bool exact = true;      // random draws depend on the global row; otherwise on (step, layer, rank)
  bool training = false;
  mutable bool drew = false;         // a draw used a key that the host chose; a CUDA graph cannot repeat it
  bool collecting = false;           // the backward of the strategy runs: gradients go to Parameter::gradient
  WaitingProducts* later = nullptr;  // null: no rank waits for the gradients of the part's inputs
  at::Tensor loss_scale;             // [1]: factor on the loss in backward (core/optim/precision.h); undefined: 1
};
using StatePtr = std::shared_ptr<const ForwardState>;

}  // namespace convoy
