// gpt: results compared with plain products and softmax; sizes, names, initial values.
#include "models/registry.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/losses/losses.h"
#include "core/model.h"
#include "models/transformer.h"
#include "strategies/common/layers/default_layers.h"
#include "tests/models/building.h"
#include "tests/models/counting_layers.h"
#include "tests/models/plain_formulas.h"

namespace convoy {
namespace {

Json small() {
  return {{"layers", 2},
          {"heads", 3},
          {"dim", 12},
          {"mlp_ratio", 2},
          {"mlp_dim", nullptr},
          {"tied", true},
          {"dropout", 0.0},
          {"bias", true},
          {"attention_dropout", 0.0},
          {"norm_eps", 1e-5},
          {"positions", "learned"},
          {"rotary_base", 10000.0},
          {"activation", "gelu"}};
}

at::Tensor norm(const Plain& plain, const std::string& name, const at::Tensor& x) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred / (centred.pow(2).mean(-1, true) + 1e-5).sqrt() * plain.value(name + ".weight") +
         plain.value(name + ".bias");
}

// The whole model in plain operations, with the given model's parameters.
at::Tensor reference(const Plain& plain, const Json& options, const at::Tensor& tokens) {
  const int64_t heads = options["heads"].get<int64_t>(), dim = options["dim"].get<int64_t>(), size = dim / heads;
  const bool rotary = options["positions"] == "rotary";
  const at::Tensor mask = at::ones({length, length}, at::kBool).tril().logical_not();
  at::Tensor h = plain.value("embedding.tokens.weight").index({tokens});
  if (!rotary) h = h + plain.value("embedding.positions").slice(0, 0, length);
  for (int64_t layer = 0; layer < options["layers"].get<int64_t>(); ++layer) {
    const std::string block = str("blocks.", layer, ".");
    const at::Tensor qkv = product(plain, block + "qkv", norm(plain, block + "attention_norm", h));
    std::vector<at::Tensor> attended;
    for (int64_t head = 0; head < heads; ++head) {
      at::Tensor q = qkv.slice(-1, head * size, (head + 1) * size);
      at::Tensor k = qkv.slice(-1, dim + head * size, dim + (head + 1) * size);
      const at::Tensor v = qkv.slice(-1, 2 * dim + head * size, 2 * dim + (head + 1) * size);
      if (rotary)
        q = turned(q, options["rotary_base"].get<double>()), k = turned(k, options["rotary_base"].get<double>());
      const at::Tensor scores = (q.matmul(k.transpose(-2, -1)) / std::sqrt(double(size))).masked_fill(mask, -1e300);
      attended.push_back(scores.softmax(-1).matmul(v));
    }
    h = h + product(plain, block + "projection", at::cat(attended, -1));
    const at::Tensor up = product(plain, block + "up", norm(plain, block + "mlp_norm", h));
    const at::Tensor inner = up * std::sqrt(2.0 / std::acos(-1.0)) * (1 + 0.044715 * up * up);
    const at::Tensor weight = options["activation"] == "gelu" ? at::erf(up / std::sqrt(2.0)) : inner.tanh();
    h = h + product(plain, block + "down", up * (1 + weight) / 2);
  }
  const char* out = options["tied"].get<bool>() ? "embedding.tokens.weight" : "output.linear.weight";
  return norm(plain, "output.norm", h).matmul(plain.value(out).t());
}

TEST(Gpt, EqualsTheFormulasInValuesAndGradients) {
  for (const Json& changes : std::vector<Json>{Json::object(),
                                               {{"positions", "rotary"}, {"tied", false}},
                                               {{"activation", "gelu_tanh"}, {"context", 11}, {"norm_eps", 1e-5}},
                                               {{"bias", false}, {"mlp_dim", 9}, {"rotary_base", 100.0}},
                                               {{"positions", "rotary"}, {"rotary_base", 50.0}, {"heads", 1}}}) {
    const Json options = with(small(), changes);
    const auto model = make_gpt(Options(options), text());
    Plain plain(at::kDouble);
    const auto blocks = blocks_of(*model, plain.layers);
    // Values that are not small by chance.
    for (const auto& parameter : plain.store->parameters) {
      at::NoGradGuard no_grad;
      parameter->value.add_(at::randn_like(parameter->value) * 0.3);
    }
    const Batch batch = sequences(5);
    const at::Tensor logits = forward(*model, blocks, batch)[0];
    const at::Tensor expected = reference(plain, options, batch.at("tokens"));
    ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{5, length, vocabulary}));
    EXPECT_LE(worst(logits, expected), 1e-12) << options.dump();

    at::Tensor direction = at::randn_like(expected);
    std::vector<at::Tensor> values;
    for (const auto& parameter : plain.store->parameters) values.push_back(parameter->value);
    const auto mine = torch::autograd::grad({logits}, values, {direction});
    const auto theirs = torch::autograd::grad({expected}, values, {direction});
    double largest = 0;
    for (const auto& gradient : theirs) largest = std::max(largest, gradient.abs().max().item<double>());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE((mine[i] - theirs[i]).abs().max().item<double>() / largest, 1e-12)
          << plain.store->parameters[i]->name << " " << options.dump();
    }
  }
}

TEST(Gpt, ATokenDoesNotSeeLaterTokens) {
  const auto model = make_gpt(Options(with(small(), {{"positions", "rotary"}})), text());
  Plain plain(at::kDouble);
  const auto blocks = blocks_of(*model, plain.layers);
  Batch batch = sequences(2);
  const at::Tensor before = forward(*model, blocks, batch)[0];
  batch.at("tokens").select(1, 4).add_(1).remainder_(vocabulary);
  const at::Tensor after = forward(*model, blocks, batch)[0];
  EXPECT_TRUE(at::equal(before.slice(1, 0, 4), after.slice(1, 0, 4)));
  EXPECT_FALSE(at::allclose(before.slice(1, 4), after.slice(1, 4)));
}

TEST(Gpt, MembersMayComeBeforeRows) {
  const auto model = make_gpt(Options(small()), text());
  Plain plain(at::kDouble);
  const auto blocks = blocks_of(*model, plain.layers);
  Batch both = sequences(6);
  const at::Tensor flat = forward(*model, blocks, both)[0];
  for (auto& entry : both.tensors) entry.second = entry.second.unflatten(0, {2, 3});
  const at::Tensor stacked = forward(*model, blocks, both)[0];
  EXPECT_LE(worst(stacked.flatten(0, 1), flat), 1e-13);
  const auto metrics = model->metrics({stacked}, both, plain.layers);
  EXPECT_EQ(metrics[0].sum.sizes(), (std::vector<int64_t>{2}));
}

TEST(Gpt, CountsTokensAndAcceptsEmptyShares) {
  const auto model = make_gpt(Options(small()), text());
  Plain plain(at::kDouble);
  const auto blocks = blocks_of(*model, plain.layers);
  const auto loss = make_cross_entropy(Options());
  for (int64_t rows : {4, 0}) {
    Batch batch = sequences(rows);
    const auto outputs = forward(*model, blocks, batch);
    const Loss sum = (*loss)(model->examples(outputs, batch), plain.layers);
    EXPECT_EQ(sum.weight.item<double>(), double(rows * length));
    sum.sum.backward();
    const auto metrics = model->metrics(outputs, batch, plain.layers);
    ASSERT_EQ(metrics.size(), 1u);
    EXPECT_EQ(metrics[0].weight.item<double>(), double(rows * length));
    EXPECT_EQ(metrics[0].sum.item<double>(),
              double(outputs[0].argmax(-1).eq(batch.at("target")).sum().item<int64_t>()));
    batch.tensors.emplace_back("weight", at::full({rows}, 2.0, at::kDouble));
    EXPECT_EQ(model->metrics(outputs, batch, plain.layers)[0].weight.item<double>(), double(2 * rows * length));
    EXPECT_EQ((*loss)(model->examples(outputs, batch), plain.layers).weight.item<double>(), double(2 * rows * length));
  }
}

TEST(Gpt, TiedOutputIsOneParameter) {
  Plain tied, free;
  blocks_of(*make_gpt(Options(small()), text()), tied.layers);
  blocks_of(*make_gpt(Options(with(small(), {{"tied", false}})), text()), free.layers);
  EXPECT_EQ(tied.store->by_name.count("output.linear.weight"), 0u);
  EXPECT_EQ(free.store->by_name.count("output.linear.weight"), 1u);
  EXPECT_EQ(tied.store->parameters.size() + 1, free.store->parameters.size());
}

TEST(Gpt, DrawsInitialValuesByName) {
  Plain plain;
  blocks_of(*make_gpt(Options(with(small(), {{"layers", 8}, {"dim", 96}})), text(500, 64)), plain.layers);
  const double residual = 0.02 / std::sqrt(16.0);
  for (const auto& parameter : plain.store->parameters) {
    const std::string& name = parameter->name;
    const bool is_norm = name.find("norm") != std::string::npos, bias = name.find(".bias") != std::string::npos;
    if (bias || is_norm) {
      EXPECT_TRUE(parameter->value.eq(bias ? 0 : 1).all().item<bool>()) << name;
      continue;
    }
    const bool adds = name.find("projection") != std::string::npos || name.find("down") != std::string::npos;
    EXPECT_NEAR(parameter->value.std().item<double>(), adds ? residual : 0.02, 0.02 * 0.04) << name;
  }
}

TEST(Gpt, SizesAndBlocks) {
  const auto model =
      make_gpt(Options(with(small(), {{"layers", 4}, {"heads", 8}, {"dim", 256}, {"mlp_ratio", 4}})), text(256, 128));
  EXPECT_EQ(model->blocks(), 6);
  EXPECT_EQ(model->block_name(0), "embedding");
  EXPECT_EQ(model->block_name(1), "blocks.0");
  EXPECT_EQ(model->block_name(4), "blocks.3");
  EXPECT_EQ(model->block_name(5), "output");
  EXPECT_EQ(model->default_loss(), "cross_entropy");
  CountingLayers layers;
  blocks_of(*model, layers);
  EXPECT_EQ(layers.total(), 3257856);
}

TEST(Gpt, RefusesMismatchedSizes) {
  const auto message = [](const Json& changes, const Schema& schema) {
    try {
      make_gpt(Options(with(small(), changes)), schema);
    } catch (const Error& error) {
      return std::string(error.kind() == Failure::config ? "" : "wrong kind ") + error.what();
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({{"heads", 5}}, text()), ::testing::HasSubstr("which 5 heads do not divide; try 15"));
  EXPECT_THAT(message({{"heads", 4}, {"positions", "rotary"}}, text()), ::testing::HasSubstr("make it even"));
  Schema images;
  images.fields["features"] = {{1, 2, 2}, at::kFloat, 0};
  images.fields["target"] = {{}, at::kLong, 3};
  EXPECT_THAT(message({}, images), ::testing::HasSubstr("model gpt needs a field 'tokens'"));
  Schema other = text();
  other.fields["target"].cardinality = 3;
  EXPECT_THAT(message({}, other), ::testing::HasSubstr("have to be the same"));
}

TEST(Attention, RotaryFollowsItsFormula) {
  for (double base : {10000.0, 20.0}) {
    Rotary rotary(6, base);
    for (int64_t t : {9, 4}) {
      const at::Tensor x = at::randn({2, 3, t, 6}, at::kDouble);
      EXPECT_LE(worst(rotary(x), turned(x, base)), 1e-14);
      const at::Tensor single = x.to(at::kFloat);
      EXPECT_EQ(rotary(single).scalar_type(), at::kFloat);
    }
  }
}

struct Same : LayerModule {
  at::Tensor forward(const at::Tensor& input) override { return input; }
};

TEST(Attention, FusedEqualsUnfused) {
  for (const auto& [rows, heads, t, size] :
       std::vector<std::array<int64_t, 4>>{{3, 4, 17, 8}, {1, 1, 1, 5}, {2, 3, 70, 32}, {0, 2, 5, 4}}) {
    std::vector<at::Tensor> inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(at::randn({rows, heads, t, size}, at::kDouble).requires_grad_());
    const at::Tensor fused = causal_attention(inputs[0], inputs[1], inputs[2], nullptr, {rows});
    const at::Tensor plain = causal_attention(inputs[0], inputs[1], inputs[2], std::make_shared<Same>(), {rows});
    ASSERT_EQ(fused.sizes(), plain.sizes());
    const at::Tensor direction = at::randn_like(plain);
    const auto a = torch::autograd::grad({fused}, inputs, {direction}, std::nullopt, false, true);
    const auto b = torch::autograd::grad({plain}, inputs, {direction}, std::nullopt, false, true);
    if (rows == 0) continue;
    EXPECT_LE(worst(fused, plain), 1e-12);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), 1e-12 * direction.abs().max().item<double>() * 10);
  }
}

TEST(Attention, TakesTheNumberOfHeadsFromTheTensor) {
  // Half of the heads' queries, keys and values, as a rank of a tensor group has them, give half of the output.
  const at::Tensor q = at::randn({2, 5, 24}, at::kDouble), k = at::randn_like(q), v = at::randn_like(q);
  const at::Tensor whole = self_attention(at::cat({q, k, v}, -1), 6, nullptr, nullptr);
  for (int64_t part : {0, 1}) {
    const auto cut = [&](const at::Tensor& x) { return x.slice(-1, part * 12, part * 12 + 12); };
    const at::Tensor half = self_attention(at::cat({cut(q), cut(k), cut(v)}, -1), 6, nullptr, nullptr);
    EXPECT_LE(worst(half, cut(whole)), 1e-14);
  }
}

TEST(Attention, DropoutIsKeyedByRow) {
  Plain plain(at::kDouble);
  ForwardState& state = *plain.store->state;
  state.training = true;
  state.seed = 3;
  state.rows = 4;
  const Layer dropout = plain.layers.dropout("weights", 0.5);
  const at::Tensor qkv = at::randn({4, 5, 3 * 12}, at::kDouble);
  const at::Tensor all = self_attention(qkv, 6, nullptr, dropout);
  EXPECT_TRUE(at::equal(all, self_attention(qkv, 6, nullptr, dropout)));

  const auto parts = qkv.unflatten(-1, {3, 2, 6}).permute({2, 0, 3, 1, 4}).unbind(0);
  at::Tensor weights = parts[0].matmul(parts[1].transpose(-2, -1)) / std::sqrt(6.0);
  weights =
      weights.masked_fill(at::ones({5, 5}, at::kBool).triu(1), -std::numeric_limits<double>::infinity()).softmax(-1);
  const at::Tensor mask = dropout_mask(weights.reshape({4, 50}), 0.5, "weights", state).view_as(weights);
  EXPECT_NEAR(mask.eq(0).to(at::kDouble).mean().item<double>(), 0.5, 0.15);
  const at::Tensor expected = (weights * mask).matmul(parts[2]).transpose(1, 2).reshape({4, 5, 12});
  EXPECT_LE(worst(all, expected), 1e-13);

  // The last two rows alone, as another rank's share.
  state.rows = 2;
  state.first_row = 2;
  EXPECT_LE(worst(self_attention(qkv.slice(0, 2), 6, nullptr, dropout), all.slice(0, 2)), 1e-13);
}

}  // namespace
}  // namespace convoy
