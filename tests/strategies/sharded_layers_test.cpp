// Layers sharded over 1 to 4 ranks, compared with whole ones: values, outputs, gradients, draws, refusals.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/model.h"
#include "core/optim/precision.h"
#include "strategies/common/step/gradient_collector.h"
#include "tests/strategies/sharded_pair.h"

namespace convoy::testing {
namespace {

using Cut = LinearOptions::Cut;
const LinearOptions column = with_cut(Cut::column), row = with_cut(Cut::row);

// features 8 → 24 sharded → 8, with dropout inside and after.
Forward pair_block(Layers& layers) {
  const Layer up = layers.linear("up", 8, 24, column), within = layers.dropout("within", 0.3);
  const Layer down = layers.linear("down", 24, 8, row), behind = layers.dropout("behind", 0.4);
  return [=](const at::Tensor& x) { return behind->forward(down->forward(within->forward(up->forward(x).tanh()))); };
}

// Two column-parallel layers of one input; a row-parallel layer takes their product.
Forward gated_block(Layers& layers) {
  const Layer gate = layers.linear("gate", 8, 12, column), up = layers.linear("up", 8, 12, column);
  const Layer drop = layers.dropout("drop", 0.3), down = layers.linear("down", 12, 8, row);
  const Layer residual = layers.dropout("residual", 0.2);
  return [=](const at::Tensor& x) {
    const at::Tensor h = drop->forward(gate->forward(x).sigmoid() * up->forward(x));
    return x + residual->forward(down->forward(h));
  };
}

// Twelve heads of two features over x [B, T, 24], with dropout on the fused product, on the weights and on the output.
Forward attention_block(Layers& layers) {
  const Layer norm = layers.layer_norm("norm", 24), qkv = layers.linear("qkv", 24, 72, with_cut(Cut::column, 3));
  const Layer raw = layers.dropout("raw", 0.1), weights = layers.dropout("weights", 0.3);
  const Layer out = layers.linear("out", 24, 24, row), behind = layers.dropout("behind", 0.2);
  return [=](const at::Tensor& x) {
    const at::Tensor fused = raw->forward(qkv->forward(norm->forward(x)));
    const int64_t rows = x.size(0), length = fused.size(1), heads = fused.size(2) / 6;
    const auto parts = fused.view({rows, length, 3, heads, 2}).permute({2, 0, 3, 1, 4}).unbind(0);
    at::Tensor mixed = parts[0].matmul(parts[1].transpose(-1, -2)).softmax(-1);
    mixed = weights->forward(mixed.reshape({rows, -1})).view(mixed.sizes()).matmul(parts[2]);
    return x + behind->forward(out->forward(mixed.transpose(1, 2).reshape({rows, length, heads * 2})));
  };
}

// A norm, a bare tensor and a whole layer on the features of each head. Every rank has them whole, and uses them on its
// shard of the heads.
Forward within_block(Layers& layers) {
  const Layer up = layers.linear("up", 8, 48, column), norm = layers.layer_norm("norm", 4);
  const Layer rms = layers.rms_norm("rms", 4);
  const Layer inner = layers.linear("inner", 4, 4), down = layers.linear("down", 48, 8, row);
  const std::shared_ptr<ParameterHandle> scale = layers.parameter("scale", {4}, {Init::Kind::normal, 1, 0.2});
  const std::shared_ptr<ParameterHandle> outside = layers.parameter("outside", {8}, {Init::Kind::normal, 1, 0.2});
  return [=](const at::Tensor& x) {
    const at::Tensor heads = up->forward(x * outside->get()).unflatten(-1, {-1, 4});
    return down->forward(inner->forward(rms->forward(norm->forward(heads)) * scale->get()).tanh().flatten(-2, -1));
  };
}

Forward gathered_block(Layers& layers) {
  const Layer first = layers.linear("first", 8, 12, with_cut(Cut::column, 1, true));
  const Layer fused = layers.linear("fused", 12, 24, with_cut(Cut::column, 2, true));
  const Layer whole = layers.linear("whole", 24, 5), drop = layers.dropout("drop", 0.3);
  return [=](const at::Tensor& x) {
    return whole->forward(drop->forward(fused->forward(first->forward(x).tanh()).tanh()));
  };
}

// A row-parallel layer with a whole input uses its share of it.
Forward row_first_block(Layers& layers) {
  const Layer down = layers.linear("down", 12, 6, row), out = layers.linear("out", 6, 12, column);
  return [=](const at::Tensor& x) { return out->forward(down->forward(x).tanh()); };
}

// A row-parallel layer that is tied to a whole weight gathers its inputs.
Forward tied_to_whole_block(Layers& layers) {
  const Layer owner = layers.linear("owner", 12, 8), up = layers.linear("up", 8, 12, column);
  LinearOptions tied = row;
  tied.tied_to = layers.name("owner.weight");
  const Layer down = layers.linear("down", 12, 8, tied), after = layers.linear("after", 8, 12, column);
  const Layer last = layers.linear("last", 12, 12, row);
  return [=](const at::Tensor& x) {
    const at::Tensor h = down->forward(up->forward(owner->forward(x).tanh()).tanh());
    return last->forward(after->forward(h).tanh());
  };
}

class ShardedLayersTest : public ::testing::TestWithParam<int> {};

TEST_P(ShardedLayersTest, ColumnThenRow) {
  expect_equal(GetParam(), pair_block, {5, 8});
  expect_equal(GetParam(), pair_block, {3, 2, 8});
  expect_equal(GetParam(), pair_block, {0, 8});
}
TEST_P(ShardedLayersTest, TwoColumnsThenRow) { expect_equal(GetParam(), gated_block, {5, 8}); }
TEST_P(ShardedLayersTest, SectionsAndHeads) { expect_equal(GetParam(), attention_block, {3, 5, 24}); }
TEST_P(ShardedLayersTest, WholeLayersWithinARegion) { expect_equal(GetParam(), within_block, {5, 8}); }
TEST_P(ShardedLayersTest, ImmediateGather) { expect_equal(GetParam(), gathered_block, {5, 8}); }
TEST_P(ShardedLayersTest, RowParallelWithAnUnshardedInput) { expect_equal(GetParam(), row_first_block, {5, 12}); }

TEST_P(ShardedLayersTest, RowParallelAndTiedToAWholeWeight) { expect_equal(GetParam(), tied_to_whole_block, {5, 12}); }

TEST_P(ShardedLayersTest, SequenceParallelism) {
  TensorOptions shares;
  shares.sequence_parallel = true;
  expect_equal(GetParam(), attention_block, {3, 12, 24}, shares);
  expect_equal(GetParam(), gated_block, {2, 12, 8}, shares);
  expect_equal(GetParam(), within_block, {2, 12, 8}, shares);
  expect_equal(GetParam(), tied_to_whole_block, {2, 12, 12}, shares);
  expect_equal(GetParam(), gated_block, {5, 8}, shares);         // no sequences
  expect_equal(GetParam(), gathered_block, {2, 12, 8}, shares);  // no sharded layers
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedLayersTest, ::testing::Values(1, 2, 3, 4));

TEST(ShardedLayers, AGroupOfOneHasDefaultLayers) {
  on_ranks(1, {}, pair_block, [](Pair& pair) {
    EXPECT_NE(dynamic_cast<DefaultLayers*>(pair.cut.layers.get()), nullptr);
    EXPECT_TRUE(pair.cut.run(normal({5, 8}, "x")).equal(pair.whole.run(normal({5, 8}, "x"))));
  });
}

TEST(ShardedLayers, ShardActivations) {
  const Build build = [](Layers& layers) -> Forward {
    const Layer up = layers.linear("up", 8, 24, column), down = layers.linear("down", 24, 8, row);
    return [=](const at::Tensor& x) {
      const at::Tensor h = up->forward(x);
      EXPECT_TRUE(h.size(-1) == 24 || h.size(-1) == 8);
      return h.size(-1) == 24 ? down->forward(h) : down->forward(h) + 1;
    };
  };
  on_ranks(3, {}, build, [](Pair& pair) {
    const at::Tensor x = normal({5, 8}, "x");
    EXPECT_TRUE(pair.cut.run(x).allclose(pair.whole.run(x) + 1, 1e-12, 1e-12));
    EXPECT_EQ(pair.cut.store->by_name.at("block.up.weight")->value.sizes(), at::IntArrayRef({8, 8}));
    EXPECT_EQ(pair.cut.store->by_name.at("block.down.weight")->value.sizes(), at::IntArrayRef({8, 8}));
    EXPECT_TRUE(pair.cut.store->by_name.at("block.down.bias")->held.empty());
  });
}

// Gradients of the strategy's backward are written in place: the first overwrites, the second adds.
TEST(ShardedLayers, WriteGradientsInPlace) {
  for (bool shares : {false, true}) {
    TensorOptions options;
    options.sequence_parallel = shares;
    on_ranks(2, options, attention_block, [](Pair& pair) {
      const at::Tensor x = normal({3, 4, 24}, "x"), seed = normal({3, 4, 24}, "seed");
      for (const ParameterPtr& parameter : pair.cut.store->parameters)
        parameter->gradient = at::full_like(parameter->value, 9).detach();
      GradientCollector collector(pair.cut.store->parameters, pair.cut.store->state, [](int) {});
      collector.begin();
      pair.cut.store->state->collecting = true;
      for (int use = 0; use < 2; ++use) {
        torch::autograd::backward({pair.whole.run(x)}, {seed});
        torch::autograd::backward({pair.cut.run(x)}, {seed});
      }
      for (const ParameterPtr& parameter : pair.cut.store->parameters) {
        EXPECT_FALSE(parameter->value.grad().defined()) << parameter->name;
        parameter->value.mutable_grad() = parameter->gradient;
      }
      pair.expect_gradients();
    });
  }
}

// A model that penalises the slope of its output differentiates it within its forward.
TEST(ShardedLayers, SupportSecondDerivatives) {
  for (bool shares : {false, true}) {
    TensorOptions options;
    options.sequence_parallel = shares;
    on_ranks(3, options, gated_block, [](Pair& pair) {
      for (Side* side : {&pair.whole, &pair.cut}) {
        const at::Tensor x = normal({2, 6, 8}, "x").set_requires_grad(true);
        const at::Tensor y = side->run(x);
        const at::Tensor slope = torch::autograd::grad({y.pow(2).sum()}, {x}, {}, true, true)[0];
        torch::autograd::backward({y.sum() + slope.pow(2).sum()}, {});
      }
      pair.expect_gradients(1e-11);
    });
  }
}

TEST(ShardedLayers, EvaluationDropsNothing) {
  on_ranks(3, {}, pair_block, [](Pair& pair) {
    at::NoGradGuard no_grad;
    pair.whole.store->state->training = pair.cut.store->state->training = false;
    const at::Tensor x = normal({5, 8}, "x");
    EXPECT_TRUE(pair.cut.run(x).allclose(pair.whole.run(x), 1e-12, 1e-12));
  });
}

TEST(ShardedLayers, AutocastComputesInHalfPrecision) {
  TensorOptions shares;
  shares.sequence_parallel = true;
  const auto compare = [](Pair& pair) {
    const at::Tensor x = normal({3, 4, 24}, "x", 1, at::kFloat);
    TensorList outputs;
    for (Side* side : {&pair.whole, &pair.cut}) {
      AutocastScope autocast(at::kCPU, at::kBFloat16);
      outputs.push_back(side->run(x));
      torch::autograd::backward({outputs.back().to(at::kFloat)}, {normal({3, 4, 24}, "seed", 1, at::kFloat)});
    }
    const auto near = [](const at::Tensor& a, const at::Tensor& b) {
      return (a - b).abs().max().item<double>() <= 0.05 * b.abs().max().item<double>();
    };
    EXPECT_TRUE(near(outputs[1].to(at::kFloat), outputs[0].to(at::kFloat)));
    for (const char* name : {"block.norm.weight", "block.out.bias"})
      EXPECT_TRUE(
          near(pair.cut.store->by_name.at(name)->value.grad(), pair.whole.store->by_name.at(name)->value.grad()))
          << name;
  };
  on_ranks(2, {}, attention_block, compare, at::kFloat);
  on_ranks(2, shares, attention_block, compare, at::kFloat);
}

// A block that runs again, by activation checkpointing, uses the sequence length of its first run, so its result is the
// same.
TEST(ShardedLayers, RecomputingABlockGivesTheSameOutput) {
  TensorOptions shares;
  shares.sequence_parallel = true;
  on_ranks(2, shares, attention_block, [](Pair& pair) {
    pair.cut.run(normal({3, 4, 24}, "x"));
    const at::Tensor inputs = pair.cut.entered;
    EXPECT_EQ(inputs.size(1), 2);
    BlockBoundaries& borders = *pair.cut.store->boundaries;
    borders.again("block");
    const at::Tensor first = pair.cut.block(inputs);
    pair.cut.run(normal({3, 8, 24}, "longer"));
    pair.cut.run(normal({3, 4, 24}, "x"));
    borders.again("block");
    EXPECT_TRUE(pair.cut.block(inputs).equal(first));
    EXPECT_EQ(first.size(1), 2);
  });
}

// On GPUs draws are by rank: equal on all ranks of the group if the activation is whole, different if it is sharded.
TEST(ShardedLayers, FastDrawsFollowTheSharding) {
  run_ranks({"local", 2}, [](Communicator& world) {
    const CommunicatorPtr group = world.split(0, world.rank(), {"tensor", {}});
    const auto store = std::make_shared<LayerStore>();
    store->state->exact = false;
    store->state->training = true;
    store->state->rank = 3 + group->rank();
    store->state->rows = 4;
    const auto layers = sharded_layers(group, {})(store);
    EXPECT_EQ(store->state->rank, 3);
    const auto scope = layers->scope("block");
    const Layer up = scope->linear("up", 16, 32, column), drop = scope->dropout("drop", 0.5);
    const auto same_on_all = [&](const at::Tensor& drawn) {
      at::Tensor all = at::empty({2, drawn.size(0), drawn.size(1)}, drawn.options());
      group->all_gather(all, drawn, {"drawn", {}})->wait();
      return all[0].equal(all[1]);
    };
    at::NoGradGuard no_grad;
    const at::Tensor ones = at::ones({4, 16});
    EXPECT_TRUE(same_on_all(drop->forward(ones)));
    up->forward(ones);
    EXPECT_FALSE(same_on_all(drop->forward(ones)));
  });
}

TEST(ShardedLayers, RefuseIndivisibleSizesByName) {
  run_ranks({"local", 3}, [](Communicator& world) {
    const auto store = std::make_shared<LayerStore>();
    const auto layers = sharded_layers(world.split(0, world.rank(), {"tensor", {}}), {})(store)->scope("block");
    const auto error_of = [](const std::function<void()>& run) -> std::string {
      try {
        run();
      } catch (const Error& error) {
        return convoy::str(name_of(error.kind()), ": ", error.what());
      }
      return "no error";
    };
    const auto expect = [](const std::string& error, const std::string& begin) {
      EXPECT_EQ(error.rfind("config: model: " + begin, 0), 0u) << error;
    };
    expect(error_of([&] { layers->linear("up", 6, 10, column); }), "block.up has 10 outputs, which 3 ranks");
    expect(error_of([&] { layers->linear("qkv", 6, 24, with_cut(Cut::column, 3)); }),
           "block.qkv has 24 outputs in 3 parts, which 3 ranks");
    expect(error_of([&] { layers->linear("odd", 6, 25, with_cut(Cut::column, 3)); }), "block.odd has 25 outputs in 3");
    expect(error_of([&] { layers->linear("down", 10, 6, row); }), "block.down has 10 inputs, which 3 ranks");
    layers->embedding("tokens", 10, 6, {});
    LinearOptions tied;
    tied.tied_to = "block.tokens.weight";
    expect(error_of([&] { layers->linear("out", 7, 10, tied); }), "block.out has a weight of [10, 7]");
    tied.cut = Cut::row;
    expect(error_of([&] { layers->linear("out", 6, 10, tied); }), "block.out requests a shard of its inputs");
    tied.tied_to = "block.nowhere.weight";
    EXPECT_NE(error_of([&] { layers->linear("out", 6, 10, tied); }).find("nowhere"), std::string::npos);
    EXPECT_NE(error_of([&] { layers->embedding("tokens", 10, 6, {}); }).find("block.tokens.weight"), std::string::npos);
  });
}

TEST(ShardedLayers, RefuseIndivisibleSequences) {
  TensorOptions shares;
  shares.sequence_parallel = true;
  on_ranks(2, shares, gated_block, [](Pair& pair) {
    try {
      pair.cut.run(normal({2, 5, 8}, "x"));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      EXPECT_NE(std::string(error.what()).find("sequences of 5, which 2 ranks"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace convoy::testing
