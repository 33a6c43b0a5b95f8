#include "core/state.h"

#include "core/base/error.h"

namespace convoy {
namespace {

int64_t box_elements(const std::vector<int64_t>& length) {
  int64_t product = 1;
  for (int64_t size : length) product *= size;
  return product;
}

}  // namespace

const char* name_of(StateKind kind) {
  static constexpr const char* names[] = {"parameter", "buffer", "moment", "gradient", "counter"};
  static_assert(std::size(names) == static_cast<size_t>(StateKind::counter) + 1);
  return names[static_cast<size_t>(kind)];
}

Piece Piece::whole(at::IntArrayRef shape) {
  Piece piece;
  piece.global_shape = shape.vec();
  piece.offset.assign(shape.size(), 0);
  piece.length = shape.vec();
  return piece;
}

bool Piece::is_whole() const {
  for (size_t d = 0; d < global_shape.size(); ++d) {
    if (offset[d] != 0 || length[d] != global_shape[d]) return false;
  }
  return !flat || elements() == box_elements(length);
}

int64_t Piece::elements() const { return flat ? flat->second - flat->first : box_elements(length); }

std::string StateEntry::key() const {
  std::string key = str(name_of(kind), "/");
  if (!moment.empty()) key += moment + "/";
  key += name;
  if (member >= 0) key += str("@member", member);
  if (replica >= 0) key += str("@replica", replica);
  return key;
}

}  // namespace convoy
