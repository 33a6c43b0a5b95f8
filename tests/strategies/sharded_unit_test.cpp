// Units of sharded parameters: the shard of each rank, attached and detached memory, and the memory pool.
#include "strategies/shards/sharded_unit.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/communicator.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/ranks.h"

namespace convoy {
namespace {

ParameterPtr parameter(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  auto made = std::make_shared<Parameter>();
  made->name = name;
  const int64_t elements = c10::multiply_integers(shape);
  made->value = at::arange(1, elements + 1, at::TensorOptions(dtype)).view(shape).set_requires_grad(true);
  return made;
}

Component optimizer(const std::string& text = "{name: adam, lr: 0.1, groups: [{match: bias, weight_decay: 0.5}]}") {
  testing::Training training;
  training.optimizer = text;
  return testing::test_config({}, training).optimizer;
}

TEST(UnitLayout, ShardsCoverEveryElementOnce) {
  const std::vector<ParameterPtr> parameters{parameter("a.weight", {5, 3}), parameter("a.bias", {5}),
                                             parameter("b.weight", {20})};
  for (int ranks : {1, 2, 3, 7}) {
    const UnitLayout layout(parameters, ranks, 8, optimizer());
    EXPECT_EQ(layout.shard_size() % 8, 0);
    EXPECT_EQ(layout.whole(), layout.shard_size() * ranks);
    // Parameters of one optimizer group are adjacent, for any order.
    EXPECT_EQ(layout.parameters()[1]->name, "b.weight");
    std::vector<int> owners(static_cast<size_t>(layout.whole()), 0);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(layout.offset(i) % 8, 0);
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const UnitLayout::Range held = layout.local_range(i, rank);
        if (held.size() == 0) continue;
        EXPECT_EQ(held.begin, next);
        next = held.end;
        EXPECT_GE(layout.offset(i) + held.begin, rank * layout.shard_size());
        EXPECT_LE(layout.offset(i) + held.end, (rank + 1) * layout.shard_size());
        for (int64_t e = held.begin; e < held.end; ++e) ++owners[static_cast<size_t>(layout.offset(i) + e)];
      }
      EXPECT_EQ(next, layout.parameters()[i]->value.numel());
    }
    for (const UnitLayout::Range& gap : layout.gaps())
      for (int64_t e = gap.begin; e < gap.end; ++e) ++owners[static_cast<size_t>(e)];
    EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), layout.whole()) << ranks;
  }
}

TEST(UnitLayout, RangesAreParameterGroupsSplitByShards) {
  // a.weight and b.weight (16 + 24 elements) have weight decay 0. a.bias (8) has 0.5 and comes last. The last of three
  // shards begins within b.weight.
  const std::vector<ParameterPtr> parameters{parameter("a.weight", {16}), parameter("a.bias", {8}),
                                             parameter("b.weight", {24})};
  const UnitLayout layout(parameters, 3, 8, optimizer());
  ASSERT_EQ(layout.shard_size(), 16);
  EXPECT_EQ(layout.slots(0).size(), 1u);
  EXPECT_EQ(layout.slots(1).size(), 1u);
  const auto last = layout.slots(2);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].range.end, 8);
  EXPECT_EQ(last[0].group.weight_decay, 0);
  EXPECT_EQ(last[1].range.begin, 8);
  EXPECT_EQ(last[1].range.end, 16);
  EXPECT_EQ(last[1].group.weight_decay, 0.5);
}

TEST(SwappedStorage, KeepsValuesOfTensors) {
  SwappedStorage storage(6, at::kDouble, at::kCPU);
  const at::Tensor view = storage.view(2, {2, 2});
  EXPECT_EQ(view.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_THROW(view.const_data_ptr<double>(), c10::Error);
  const at::Tensor memory = at::arange(6, at::kDouble);
  storage.put(memory);
  EXPECT_EQ(view.sum().item<double>(), 2 + 3 + 4 + 5);
  EXPECT_TRUE(storage.take().is_same(memory));
  EXPECT_FALSE(storage.present());
  EXPECT_THROW(view.const_data_ptr<double>(), c10::Error);
}

TEST(SwappedStorage, KeepsValuesOfAGraph) {
  SwappedStorage storage(4, at::kDouble, at::kCPU);
  at::Tensor weight = storage.view(0, {2, 2}).set_requires_grad(true);
  const at::Tensor x = at::ones({3, 2}, at::kDouble).set_requires_grad(true);
  storage.put(at::arange(1, 5, at::kDouble));
  const at::Tensor y = at::mm(x, weight).pow(2);
  const at::Tensor expected = torch::autograd::grad({y.sum()}, {x}, {}, true)[0];
  storage.take().fill_(std::numeric_limits<double>::quiet_NaN());  // another user has the memory
  storage.put(at::arange(1, 5, at::kDouble));
  EXPECT_TRUE(torch::autograd::grad({y.sum()}, {x})[0].equal(expected));
}

TEST(BufferPool, ReusesReturnedBuffers) {
  BufferPool pool(at::kCPU);
  at::Tensor small = pool.take(100), large = pool.take(1000);
  const void* place = large.data_ptr();
  EXPECT_EQ(pool.bytes(), 1100);
  pool.give(small);
  pool.give(large);
  const at::Tensor found = pool.take(600);
  EXPECT_EQ(found.data_ptr(), place);   // the smallest that is large enough
  at::Tensor larger = pool.take(2000);  // frees the 100: with it the pool would exceed 3000, the peak of lent memory
  EXPECT_EQ(pool.peak(), 3000);
  EXPECT_EQ(pool.bytes(), 3000);
  pool.give(larger);
  const at::Tensor other = pool.take(900);  // new memory; frees the 2000, because 1000 + 2000 + 900 exceeds the peak
  EXPECT_EQ(pool.bytes(), 1900);
  pool.give(other);
  larger = pool.take(1100);  // new memory; frees nothing, because 1900 + 1100 is within the peak
  EXPECT_EQ(pool.bytes(), 3000);
  EXPECT_EQ(pool.peak(), 3000);
  EXPECT_EQ(numbers_in(larger, 7, at::kDouble).numel(), 7);
  pool.restart();  // keeps what is lent: 1000 and 1100
  EXPECT_EQ(pool.bytes(), 2100);
  EXPECT_EQ(pool.peak(), 2100);
}

// Runs `body` on three ranks, each with a unit of two parameters.
void with_units(Shard shard, const std::function<void(Communicator&, ShardedUnit&, std::vector<ParameterPtr>&)>& body) {
  RankGroup three;
  three.backend = "local";
  three.size = 3;
  run_ranks(three, [&](Communicator& world) {
    std::vector<ParameterPtr> parameters{parameter("a.weight", {5, 3}), parameter("a.bias", {5})};
    const CommunicatorPtr group(&world, [](Communicator*) {});
    ShardedUnit unit({"a", parameters, shard, {}}, group, std::make_shared<BufferPool>(at::kCPU), optimizer());
    body(world, unit, parameters);
  });
}

TEST(ShardedUnit, GathersAndFreesValues) {
  with_units(Shard::parameters, [](Communicator&, ShardedUnit& unit, std::vector<ParameterPtr>& parameters) {
    const at::Tensor expected = at::arange(1, 16, at::kDouble).view({5, 3});
    EXPECT_THROW(parameters[0]->value.const_data_ptr<double>(), c10::Error);
    unit.prefetch();
    unit.acquire();
    unit.acquire();
    EXPECT_TRUE(parameters[0]->value.equal(expected));
    unit.release();
    EXPECT_TRUE(parameters[0]->value.equal(expected));  // it is still in use
    unit.keep();
    unit.release();
    EXPECT_TRUE(parameters[0]->value.equal(expected));
    unit.let_go();
    EXPECT_THROW(parameters[0]->value.const_data_ptr<double>(), c10::Error);
    unit.values().mul_(2);  // an update
    unit.acquire();
    EXPECT_TRUE(parameters[0]->value.equal(expected * 2));
    EXPECT_TRUE(parameters[1]->value.equal(at::arange(1, 6, at::kDouble) * 2));
    unit.release();
  });
}

TEST(ShardedUnit, RefusesWritesToGatheredValues) {
  with_units(Shard::parameters, [](Communicator&, ShardedUnit& unit, std::vector<ParameterPtr>& parameters) {
    unit.acquire();
    parameters[0]->value.detach().mul_(2);
    try {
      unit.release();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("a.weight"), std::string::npos) << error.what();
    }
  });
}

TEST(ShardedUnit, SumsGradientsIntoTheLocalShard) {
  for (Shard shard : {Shard::optimizer, Shard::gradients, Shard::parameters})
    with_units(shard, [&](Communicator& world, ShardedUnit& unit, std::vector<ParameterPtr>& parameters) {
      const int64_t backwards = shard == Shard::optimizer ? 1 : 2;
      unit.begin();
      for (int64_t backward = 0; backward < backwards; ++backward) {
        unit.open_gradients();
        parameters[0]->gradient.fill_(world.rank() + 1);
        parameters[0]->written = true;  // the bias takes no part
        unit.reduce();
        unit.finish_reduce();
      }
      const UnitLayout& layout = unit.layout();
      for (size_t i = 0; i < 2; ++i) {
        const UnitLayout::Range held = layout.local_range(i, world.rank());
        if (held.size() == 0) continue;
        const at::Tensor sum =
            unit.gradients().narrow(0, layout.offset(i) + held.begin - world.rank() * layout.shard_size(), held.size());
        const double expected = layout.parameters()[i]->name == "a.weight" ? 6.0 * double(backwards) : 0;
        EXPECT_TRUE(sum.equal(at::full_like(sum, expected))) << static_cast<int>(shard);
      }
      // Gaps stay zero for any content of the borrowed memory: norms and moments cover them.
      const double all = unit.gradients().sum().item<double>();
      double mine = 0;
      for (size_t i = 0; i < 2; ++i)
        if (layout.parameters()[i]->name == "a.weight") mine = double(layout.local_range(i, world.rank()).size());
      EXPECT_EQ(all, mine * 6 * double(backwards));
    });
}

TEST(ShardedUnit, BroadcastsNewValues) {
  with_units(Shard::optimizer, [](Communicator&, ShardedUnit& unit, std::vector<ParameterPtr>& parameters) {
    unit.values().add_(1);
    unit.spread();
    unit.acquire();
    EXPECT_TRUE(parameters[0]->value.equal(at::arange(2, 17, at::kDouble).view({5, 3})));
    unit.release();
  });
}

TEST(ShardedUnit, KeepsFloatParametersForHalfPrecisionGathers) {
  auto weight = parameter("a.weight", {8, 8}, at::kFloat);
  weight->value.detach().div_(3);
  const at::Tensor master = weight->value.detach().clone();
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  ShardedUnit unit({"a", {weight}, Shard::parameters, at::kBFloat16}, make_single_communicator(), pool, optimizer());
  unit.acquire();
  EXPECT_EQ(weight->value.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(weight->value.equal(master.to(at::kBFloat16)));
  EXPECT_EQ(pool->bytes(), 64 * 2);
  unit.release();
  EXPECT_TRUE(unit.values().view({8, 8}).equal(master));
  unit.open_gradients();
  EXPECT_EQ(weight->gradient.scalar_type(), at::kFloat);
}

// Units follow blocks; tied tensors have separate units; parameters that only products use have a separate unit if it
// is gathered in half precision.
TEST(UnitPlan, HasAUnitPerBlockAndPerTie) {
  Context context;
  context.config = testing::test_config({}, {});
  const testing::Subject subject = testing::gpt_subject();
  ModelPart part(context, subject.model(), subject.loss);
  UnitOptions options;
  std::vector<PlannedUnit> units = plan_units({&part}, options);
  const auto names = [&] {
    std::vector<std::string> all;
    for (const PlannedUnit& unit : units) all.push_back(unit.request.name);
    return all;
  };
  EXPECT_EQ(names(),
            (std::vector<std::string>{"embedding.tokens.weight", "embedding", "blocks.0", "blocks.1", "output"}));
  EXPECT_EQ(units.front().blocks, (std::vector<size_t>{0, 3}));
  options.autocast = at::kBFloat16;
  units = plan_units({&part}, options);
  EXPECT_EQ(names(), (std::vector<std::string>{"embedding.tokens.weight", "embedding", "blocks.0", "blocks.0",
                                               "blocks.1", "blocks.1", "output"}));
  // Autocast looks up rows of the tied table in fp32.
  EXPECT_FALSE(units.front().request.gathered.has_value());
  options.by_tensor = true;
  EXPECT_EQ(plan_units({&part}, options).size(), part.parameters().size());
}

}  // namespace
}  // namespace convoy
