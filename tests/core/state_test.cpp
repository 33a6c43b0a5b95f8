// Keys of state entries, and the group of one rank.
#include "core/state.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "core/communicator.h"
#include "core/context.h"

namespace convoy {
namespace {

TEST(StateEntry, KeysIdentifyEntries) {
  StateEntry entry;
  entry.name = "blocks.3.weight";
  EXPECT_EQ(entry.key(), "parameter/blocks.3.weight");
  entry.kind = StateKind::moment;
  entry.moment = "exp_avg";
  EXPECT_EQ(entry.key(), "moment/exp_avg/blocks.3.weight");
  entry.member = 2;
  entry.replica = 1;
  EXPECT_EQ(entry.key(), "moment/exp_avg/blocks.3.weight@member2@replica1");
}

TEST(Piece, CountsElementsOfBoxesAndRanges) {
  Piece piece = Piece::whole({4, 0, 3});
  EXPECT_EQ(piece.elements(), 0);
  EXPECT_TRUE(piece.is_whole());
  piece = Piece::whole({});
  EXPECT_EQ(piece.elements(), 1);
  piece = Piece::whole({4, 3});
  piece.flat = {5, 9};
  EXPECT_EQ(piece.elements(), 4);
}

TEST(SingleCommunicator, CollectivesCopyInputToOutput) {
  const auto one = make_single_communicator();
  EXPECT_EQ(one->size(), 1);
  at::Tensor x = at::arange(6).reshape({3, 2});
  one->all_reduce(x, ReduceOp::sum, {"x", {}})->wait();
  one->broadcast(x, 0, {"x", {}})->wait();
  EXPECT_TRUE(x.equal(at::arange(6).reshape({3, 2})));
  at::Tensor gathered = at::empty({1, 3, 2}, at::kLong), scattered = at::empty({3, 2}, at::kLong),
             rows = at::empty({3, 2}, at::kLong);
  one->all_gather(gathered, x.t().contiguous().t(), {"x", {}})->wait();
  one->reduce_scatter(scattered, gathered, ReduceOp::sum, {"x", {}})->wait();
  one->all_to_all_v(rows, {3}, x, {3}, {"x", {}})->wait();
  EXPECT_TRUE(gathered[0].equal(x));
  EXPECT_TRUE(scattered.equal(x));
  EXPECT_TRUE(rows.equal(x));
  at::Tensor received = at::empty({3, 2}, at::kLong);
  one->group({{Transfer::Kind::receive, received, 0}, {Transfer::Kind::send, x, 0}}, {"x", {}})->wait();
  EXPECT_TRUE(received.equal(x));
  EXPECT_THROW(one->receive(received, 0, {"x", {}}), Error);
  EXPECT_EQ(one->split(3, 1, {"x", {}})->size(), 1);
}

TEST(Context, AMissingAxisIsAGroupOfOne) {
  const Context context;
  EXPECT_EQ(context.axis("tensor")->size(), 1);
}

}  // namespace
}  // namespace convoy
