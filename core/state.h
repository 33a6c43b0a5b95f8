// Named state: the view of a strategy that checkpoints, `verify`, hashes and norms use, independent of its layout.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

enum class StateKind { parameter, buffer, moment, gradient, counter };
const char* name_of(StateKind kind);

// Piece of a tensor that an entry holds: a box, or a flat range inside the box (for flat shards).
struct Piece {
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // start of the box in each dimension
  std::vector<int64_t> length;
  std::optional<std::pair<int64_t, int64_t>> flat;  // [begin, end) of the box's elements, row-major

  static Piece whole(at::IntArrayRef shape);
  bool is_whole() const;
  int64_t elements() const;
};

struct StateEntry {
  std::string name;    // canonical: "blocks.3.attention.out.weight"; the same in every layout
  std::string moment;  // for kind moment: "exp_avg", "exp_avg_sq", "momentum", …; otherwise ""
  StateKind kind = StateKind::parameter;
  Piece piece;
  int member = -1;     // ensemble member; -1: none
  int replica = -1;    // number of the copy, if copies may differ (moments under local SGD); -1: all copies are equal
  at::Tensor tensor;   // shape: piece.length, or [end - begin] for a flat range; restoring writes to it
  bool owner = true;   // true on exactly one of the ranks that hold the same piece
  at::Tensor copy;     // undefined, or a copy of `tensor` by Strategy::flush_and_copy; valid until it is called again
  bool stale = false;  // a sparse embedding was trained after its last flush: some rows are stale

  // Unique within a layout: "parameter/NAME", "moment/exp_avg/NAME", with "@member" and "@replica" if they apply.
  std::string key() const;
};

using StateVisitor = std::function<void(const StateEntry&)>;

// --- Copying between pieces of a tensor, with any boxes or flat ranges: each layout reads every checkpoint ---

// Returns "" if the piece is valid: a box within its global shape, a flat range within the box, no overflow. Otherwise
// returns the reason.
std::string piece_error(const Piece& piece);

// Returns the shape of the tensor with a piece: the box, or [end - begin] for a flat range.
std::vector<int64_t> tensor_shape(const Piece& piece);

// Copies the elements that are in both pieces; returns their number. Both are contiguous CPU tensors of one dtype, with
// equal global shapes. Cost: one memcpy per run of elements that is contiguous in both.
int64_t copy_overlap(const Piece& to_piece, at::Tensor to, const Piece& from_piece, const at::Tensor& from);

}  // namespace convoy
