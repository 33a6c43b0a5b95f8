// llama: results compared with plain products and softmax; grouped attention, RMS norm, names, sizes, initial values.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/base/error.h"
#include "core/model.h"
#include "models/registry.h"
#include "models/transformer.h"
#include "strategies/common/layers/default_layers.h"
#include "tests/models/building.h"
#include "tests/models/counting_layers.h"
#include "tests/models/plain_formulas.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

Json small_llama() {
  return {{"layers", 2},     {"heads", 6},     {"kv_heads", 2},
          {"dim", 24},       {"mlp_dim", 20},  {"rotary_base", 50.0},
          {"tied", false},   {"dropout", 0.0}, {"attention_dropout", 0.0},
          {"norm_eps", 1e-6}};
}

at::Tensor rms(const Plain& plain, const std::string& name, const at::Tensor& x, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt() * plain.value(name + ".weight");
}

// Each query head alone, with its key and value.
at::Tensor llama_reference(const Plain& plain, const Json& options, const at::Tensor& tokens) {
  const int64_t heads = options["heads"].get<int64_t>(), dim = options["dim"].get<int64_t>(), size = dim / heads;
  const int64_t keys = options["kv_heads"].is_null() ? heads : options["kv_heads"].get<int64_t>();
  const int64_t queries = heads / keys;
  const double base = options["rotary_base"].get<double>(), eps = options["norm_eps"].get<double>();
  const at::Tensor mask = at::ones({length, length}, at::kBool).tril().logical_not();
  at::Tensor h = plain.value("embedding.tokens.weight").index({tokens});
  for (int64_t layer = 0; layer < options["layers"].get<int64_t>(); ++layer) {
    const std::string block = str("blocks.", layer, ".");
    const at::Tensor qkv = product(plain, block + "qkv", rms(plain, block + "attention_norm", h, eps));
    const auto head = [&](int64_t index) { return qkv.slice(-1, index * size, (index + 1) * size); };
    std::vector<at::Tensor> attended;
    for (int64_t query = 0; query < heads; ++query) {
      const int64_t group = query / queries, first = group * (queries + 2);
      const at::Tensor q = turned(head(first + query % queries), base), k = turned(head(first + queries), base);
      const at::Tensor scores = (q.matmul(k.transpose(-2, -1)) / std::sqrt(double(size))).masked_fill(mask, -1e300);
      attended.push_back(scores.softmax(-1).matmul(head(first + queries + 1)));
    }
    h = h + product(plain, block + "projection", at::cat(attended, -1));
    const at::Tensor both = product(plain, block + "gate_up", rms(plain, block + "mlp_norm", h, eps));
    const at::Tensor gate = both.slice(-1, 0, both.size(-1) / 2), up = both.slice(-1, both.size(-1) / 2);
    h = h + product(plain, block + "down", gate * gate.sigmoid() * up);
  }
  const char* out = options["tied"].get<bool>() ? "embedding.tokens.weight" : "output.linear.weight";
  return rms(plain, "output.norm", h, eps).matmul(plain.value(out).t());
}

TEST(Llama, EqualsTheFormulasInValuesAndGradients) {
  for (const Json& changes : std::vector<Json>{Json::object(),
                                               {{"kv_heads", 1}, {"tied", true}},
                                               {{"kv_heads", nullptr}, {"mlp_dim", nullptr}},
                                               {{"kv_heads", 6}, {"norm_eps", 0.1}, {"rotary_base", 1e4}}}) {
    const Json options = with(small_llama(), changes);
    const auto model = make_llama(Options(options), text());
    Plain plain(at::kDouble);
    const auto blocks = blocks_of(*model, plain.layers);
    std::vector<at::Tensor> values;
    for (const auto& parameter : plain.store->parameters) {
      at::NoGradGuard no_grad;
      parameter->value.add_(at::randn_like(parameter->value) * 0.3);
      values.push_back(parameter->value);
    }
    const Batch batch = sequences(5);
    const at::Tensor logits = forward(*model, blocks, batch)[0];
    const at::Tensor expected = llama_reference(plain, options, batch.at("tokens"));
    ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{5, length, vocabulary}));
    EXPECT_LE(worst(logits, expected), 1e-12) << options.dump();

    const at::Tensor direction = at::randn_like(expected);
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

TEST(Llama, AcceptsMembersAndEmptyShares) {
  const auto model = make_llama(Options(small_llama()), text());
  Plain plain(at::kDouble);
  const auto blocks = blocks_of(*model, plain.layers);
  Batch both = sequences(6);
  const at::Tensor flat = forward(*model, blocks, both)[0];
  for (auto& entry : both.tensors) entry.second = entry.second.unflatten(0, {2, 3});
  EXPECT_LE(worst(forward(*model, blocks, both)[0].flatten(0, 1), flat), 1e-13);
  const at::Tensor none = forward(*model, blocks, sequences(0))[0];
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, length, vocabulary}));
  none.sum().backward();
}

TEST(Llama, NamesSizesAndInitialValues) {
  const auto model = make_llama(Options(small_llama()), text());
  CountingLayers layers;
  blocks_of(*model, layers);
  const int64_t norm = 24, qkv = 24 * (6 + 4) * 4, projection = 24 * 24, gate_up = 24 * 40, down = 20 * 24;
  EXPECT_EQ(layers.counts().at("blocks.1.qkv"), qkv);
  EXPECT_EQ(layers.counts().at("blocks.0.gate_up"), gate_up);
  EXPECT_EQ(layers.total(), 2 * 11 * 24 + norm + 2 * (2 * norm + qkv + projection + gate_up + down));
  Plain plain;
  blocks_of(*model, plain.layers);
  for (const auto& parameter : plain.store->parameters) {
    EXPECT_THAT(parameter->name, ::testing::Not(HasSubstr("bias")));
    if (parameter->name.find("norm") != std::string::npos) {
      EXPECT_TRUE(parameter->value.eq(1).all().item<bool>()) << parameter->name;
    }
  }
  CountingLayers default_layers;
  blocks_of(*make_llama(Options(with(small_llama(), {{"mlp_dim", nullptr}})), text()), default_layers);
  EXPECT_EQ(default_layers.counts().at("blocks.0.down"), 64 * 24);  // 8/3 · 24, rounded up to 64
}

TEST(Llama, RefusesMismatchedSizes) {
  const auto message = [](const Json& changes) {
    try {
      make_llama(Options(with(small_llama(), changes)), text());
    } catch (const Error& error) {
      return std::string(error.kind() == Failure::config ? "" : "wrong kind ") + error.what();
    }
    return std::string("no error");
  };
  EXPECT_THAT(message({{"heads", 5}}), HasSubstr("which 5 heads do not divide; try 25"));
  EXPECT_THAT(message({{"heads", 8}, {"kv_heads", 8}}), HasSubstr("make it even"));
  EXPECT_THAT(message({{"kv_heads", 4}}), HasSubstr("is 4, which does not divide the 6 heads"));
}

struct Untouched : LayerModule {
  at::Tensor forward(const at::Tensor& input) override { return input; }
};

TEST(Attention, FusedGroupsEqualUnfusedGroups) {
  for (const auto& [rows, groups, queries, size] :
       std::vector<std::array<int64_t, 4>>{{3, 2, 3, 8}, {1, 1, 1, 4}, {2, 4, 2, 32}, {2, 3, 1, 6}}) {
    at::Tensor qkv = at::randn({rows, 9, groups * (queries + 2) * size}, at::kDouble).requires_grad_();
    Rotary rotary(size, 100);
    const at::Tensor fused = grouped_attention(qkv, size, queries, &rotary, nullptr);
    const at::Tensor plain = grouped_attention(qkv, size, queries, &rotary, std::make_shared<Untouched>());
    ASSERT_EQ(fused.sizes(), (std::vector<int64_t>{rows, 9, groups * queries * size}));
    EXPECT_LE(worst(fused, plain), 1e-12);
    const at::Tensor direction = at::randn_like(plain);
    const at::Tensor a = torch::autograd::grad({fused}, {qkv}, {direction})[0];
    const at::Tensor b = torch::autograd::grad({plain}, {qkv}, {direction})[0];
    EXPECT_LE(worst(a, b), 1e-12);
  }
  EXPECT_THROW(grouped_attention(at::randn({2, 3, 31}), 4, 2, nullptr, nullptr), Error);
}

// Half of the groups, as a rank of a tensor group has them, give half of the output, also with dropped weights.
TEST(Attention, TakesTheNumberOfGroupsFromTheTensor) {
  Plain plain(at::kDouble);
  const at::Tensor qkv = at::randn({2, 5, 4 * 4 * 6}, at::kDouble);
  const at::Tensor whole = grouped_attention(qkv, 6, 2, nullptr, nullptr);
  for (int64_t part : {0, 1})
    EXPECT_LE(worst(grouped_attention(qkv.slice(-1, part * 48, part * 48 + 48), 6, 2, nullptr, nullptr),
                    whole.slice(-1, part * 24, part * 24 + 24)),
              1e-14);
}

}  // namespace
}  // namespace convoy
