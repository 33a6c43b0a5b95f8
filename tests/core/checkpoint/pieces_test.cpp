// Pieces: boxes and flat ranges, compared with a simple method that marks elements of the whole.
#include "core/state.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "core/base/random_keys.h"
#include "tests/support/torch/state_view.h"

namespace convoy {
namespace {

TEST(Pieces, OverlapsEqualTheElementwiseResult) {
  uint64_t drawn = 0;
  const auto below = [&](int64_t bound) { return int64_t(random_below(5, drawn++, uint64_t(bound))); };
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> shape;
    for (int64_t d = below(4); d > 0; --d) shape.push_back(1 + below(5));
    const at::Tensor whole = at::arange(Piece::whole(shape).elements()).reshape(shape).to(at::kInt);
    const auto piece = [&] {
      Piece made = Piece::whole(shape);
      if (below(4) > 0) {
        for (size_t d = 0; d < shape.size(); ++d) {
          made.offset[d] = below(shape[d] + 1);
          made.length[d] = below(shape[d] - made.offset[d] + 1);
        }
      }
      if (below(2) == 0) {
        const int64_t elements = made.elements(), begin = below(elements + 1);
        made.flat = {begin, begin + below(elements - begin + 1)};
      }
      return made;
    };
    const Piece to = piece(), from = piece();
    ASSERT_EQ(piece_error(to), "");
    const at::Tensor target = at::full(tensor_shape(to), -1, at::kInt);
    const int64_t copied = copy_overlap(to, target, from, piece_of(whole, from));
    // Expected: elements of `to` that `from` has, -1 elsewhere.
    const std::vector<int64_t> flat_from = [&] {
      const at::Tensor flat = piece_of(whole, from).flatten().to(at::kLong);
      return std::vector<int64_t>(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
    }();
    const at::Tensor there = at::zeros({whole.numel()}, at::kBool);
    for (int64_t index : flat_from) there[index] = true;
    at::Tensor expected = piece_of(whole, to);
    expected = at::where(there.index_select(0, expected.flatten().to(at::kLong)).reshape(expected.sizes()), expected,
                         at::full_like(expected, -1));
    ASSERT_TRUE(target.equal(expected)) << "round " << round;
    ASSERT_EQ(copied, expected.ne(-1).sum().item<int64_t>());
  }
}

TEST(Pieces, NameInvalidPieces) {
  Piece piece = Piece::whole({4, 3});
  EXPECT_EQ(piece_error(piece), "");
  EXPECT_TRUE(piece.is_whole());
  piece.flat = {0, 12};
  EXPECT_TRUE(piece.is_whole());
  piece.flat = {1, 12};
  EXPECT_FALSE(piece.is_whole());
  for (auto [begin, end] : {std::pair<int64_t, int64_t>{-1, 2}, {3, 2}, {0, 13}}) {
    piece.flat = {begin, end};
    EXPECT_NE(piece_error(piece), "");
  }
  piece = Piece::whole({4, 3});
  piece.offset[1] = 1;
  EXPECT_NE(piece_error(piece), "");
  piece.length[1] = 2;
  EXPECT_EQ(piece_error(piece), "");
  EXPECT_FALSE(piece.is_whole());
  piece.offset[0] = INT64_MAX;
  EXPECT_NE(piece_error(piece), "");
  piece = Piece::whole({int64_t(1) << 40, int64_t(1) << 40});
  EXPECT_NE(piece_error(piece), "");
  piece = Piece::whole({2});
  piece.offset.clear();
  EXPECT_NE(piece_error(piece), "");
}

}  // namespace
}  // namespace convoy
