// Named state: what checkpoints, `verify`, hashes and norms see of a strategy, whatever its layout.
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

// Which part of the whole tensor an entry holds: a box, or for flat shards a range inside the row-major order of it.
struct Piece {
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // of the box, one per dimension
  std::vector<int64_t> length;
  std::optional<std::pair<int64_t, int64_t>> flat;  // [begin, end) of the box's elements, row-major

  static Piece whole(at::IntArrayRef shape);
  bool is_whole() const;
  int64_t elements() const;
};

struct StateEntry {
  std::string name;    // canonical: "blocks.3.attention.out.weight"; the same in every layout
  std::string moment;  // for kind moment: "exp_avg", "exp_avg_sq", "momentum", …; else ""
  StateKind kind = StateKind::parameter;
  Piece piece;
  int member = -1;      // of an ensemble; -1: none
  int replica = -1;     // which copy, where copies may differ (moments under local SGD); -1: all are the same
  at::Tensor tensor;    // shape: piece.length, or [end - begin] for a flat range; may be written to when restoring
  bool owner = true;    // exactly one rank of all that hold the same piece says true
  bool behind = false;  // of a row table that has not been settled since it was trained: of an earlier moment

  // Unique within a layout: "parameter/NAME", "moment/exp_avg/NAME", with "@member" and "@replica" where they apply.
  std::string key() const;
};

using StateVisitor = std::function<void(const StateEntry&)>;

}  // namespace convoy
