#include "core/state.h"

#include <algorithm>
#include <cstring>

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

namespace {

// Divides a piece into runs: ranges that are contiguous both in the piece and, row-major, in the whole tensor. Runs are
// computed one by one, since a box that is sharded in its last dimension has one run per row.
class Runs {
 public:
  explicit Runs(const Piece& piece) : piece_(piece) {
    const int64_t dims = int64_t(piece.length.size());
    stride_.assign(size_t(dims), 1);
    for (int64_t d = dims - 2; d >= 0; --d) stride_[d] = stride_[d + 1] * piece.global_shape[d + 1];
    // Trailing dimensions that the box spans completely belong to one run, together with the dimension before them.
    first_inner_ = dims;
    for (run_ = 1; first_inner_ > 0;) {
      --first_inner_;
      run_ *= piece.length[first_inner_];
      if (piece.length[first_inner_] != piece.global_shape[first_inner_]) break;
    }
    end_ = 1;
    for (int64_t length : piece.length) end_ *= length;
    position_ = 0;
    if (piece.flat) {
      position_ = piece.flat->first;
      end_ = piece.flat->second;
    }
    find_run();
  }

  bool done() const { return position_ >= end_; }
  int64_t global() const { return global_; }  // offset of the run's first element in the whole tensor
  int64_t local() const { return position_ - (piece_.flat ? piece_.flat->first : 0); }
  int64_t length() const { return length_; }
  void skip(int64_t elements) {
    position_ += elements;
    if (elements < length_) {
      global_ += elements;
      length_ -= elements;
    } else {
      find_run();
    }
  }

 private:
  // Computes where element `position_` of the box is in the whole tensor, and how long its run is.
  void find_run() {
    if (done()) return;
    int64_t index = position_ / run_;
    const int64_t within = position_ % run_;
    global_ = within;
    for (int64_t d = first_inner_ - 1; d >= 0; --d) {
      global_ += (piece_.offset[d] + index % piece_.length[d]) * stride_[d];
      index /= piece_.length[d];
    }
    for (size_t d = size_t(first_inner_); d < piece_.length.size(); ++d) global_ += piece_.offset[d] * stride_[d];
    length_ = std::min(run_ - within, end_ - position_);
  }

  const Piece& piece_;
  std::vector<int64_t> stride_;     // strides of the whole tensor
  int64_t first_inner_ = 0;         // dimensions from here on are within a run
  int64_t run_ = 1;                 // elements of a whole run
  int64_t position_ = 0, end_ = 0;  // elements of the box, row-major
  int64_t global_ = 0, length_ = 0;
};

}  // namespace

std::string piece_error(const Piece& piece) {
  const size_t dims = piece.global_shape.size();
  if (piece.offset.size() != dims || piece.length.size() != dims) return "its box has another number of dimensions";
  int64_t whole = 1, box = 1;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t size = piece.global_shape[d], offset = piece.offset[d], length = piece.length[d];
    if (size < 0 || offset < 0 || length < 0 || offset > size || length > size - offset) {
      return str("its box leaves the tensor in dimension ", d);
    }
    if (__builtin_mul_overflow(whole, size, &whole)) return "its shape is too large";
    box *= length;
  }
  if (piece.flat && (piece.flat->first < 0 || piece.flat->first > piece.flat->second || piece.flat->second > box)) {
    return "its flat range leaves the box";
  }
  return "";
}

std::vector<int64_t> tensor_shape(const Piece& piece) {
  if (piece.flat) return {piece.flat->second - piece.flat->first};
  return piece.length;
}

int64_t copy_overlap(const Piece& to_piece, at::Tensor to, const Piece& from_piece, const at::Tensor& from) {
  CONVOY_CHECK(to_piece.global_shape == from_piece.global_shape && to.scalar_type() == from.scalar_type() &&
                   to.is_contiguous() && from.is_contiguous() && to.is_cpu() && from.is_cpu() &&
                   to.numel() == to_piece.elements() && from.numel() == from_piece.elements(),
               "pieces of unlike tensors");
  const int64_t size = int64_t(to.element_size());
  char* target = static_cast<char*>(to.mutable_data_ptr());
  const char* source = static_cast<const char*>(from.const_data_ptr());
  int64_t copied = 0;
  Runs a(to_piece), b(from_piece);
  while (!a.done() && !b.done()) {
    if (a.global() < b.global()) {
      a.skip(std::min(a.length(), b.global() - a.global()));
    } else if (b.global() < a.global()) {
      b.skip(std::min(b.length(), a.global() - b.global()));
    } else {
      const int64_t common = std::min(a.length(), b.length());
      std::memcpy(target + a.local() * size, source + b.local() * size, size_t(common * size));
      copied += common;
      a.skip(common);
      b.skip(common);
    }
  }
  return copied;
}

}  // namespace convoy
