// convnet and resnet: published sizes, results, refusals.
#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <tuple>

#include "core/base/error.h"
#include "models/common.h"
#include "models/registry.h"
#include "tests/models/building.h"
#include "tests/models/counting_layers.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

Json convnet(std::vector<int64_t> channels, int64_t hidden, bool batch_norm = true) {
  return {{"channels", channels}, {"kernel", 3}, {"batch_norm", batch_norm}, {"hidden", hidden}, {"dropout", 0.0}};
}

Json resnet(const char* shape, int64_t depth) { return {{"shape", shape}, {"depth", depth}}; }

Schema images(std::vector<int64_t> shape, int64_t classes) {
  Schema schema;
  schema.fields["features"] = {std::move(shape), at::kFloat, 0};
  schema.fields["target"] = {{}, at::kLong, classes};
  return schema;
}

Batch batch_of(int64_t rows, int64_t channels, int64_t size, int64_t classes) {
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"features", at::randn({rows, channels, size, size}, at::kDouble)},
                   {"target", at::randint(0, classes, {rows}, at::kLong)}};
  return batch;
}

int64_t parameters_of(const Model& model) {
  CountingLayers layers;
  blocks_of(model, layers);
  return layers.total();
}

std::string message(const std::function<void()>& doing) {
  try {
    doing();
  } catch (const Error& error) {
    return std::string(error.kind() == Failure::config ? "" : "wrong kind ") + error.what();
  }
  return "no error";
}

TEST(Resnet, HasThePublishedSizes) {
  const Schema small = images({3, 32, 32}, 10), large = images({3, 224, 224}, 1000);
  const std::vector<std::tuple<const char*, int64_t, int64_t, int64_t>> sizes{
      {"cifar", 20, 269722, 11},      {"cifar", 32, 464154, 17},      {"cifar", 56, 853018, 29},
      {"imagenet", 18, 11689512, 10}, {"imagenet", 34, 21797672, 18}, {"imagenet", 50, 25557032, 18}};
  for (const auto& [shape, depth, parameters, blocks] : sizes) {
    const bool cifar = std::string(shape) == "cifar";
    const auto model = make_resnet(Options(resnet(shape, depth)), cifar ? small : large);
    EXPECT_EQ(parameters_of(*model), parameters) << shape << " " << depth;
    EXPECT_EQ(model->blocks(), blocks) << shape << " " << depth;
    EXPECT_EQ(model->block_name(0), "stem");
    EXPECT_EQ(model->block_name(1), "blocks.0");
    EXPECT_EQ(model->block_name(blocks - 1), "output");
  }
}

TEST(Resnet, AcceptsBothImageShapesAndEmptyShares) {
  for (const auto& [shape, depth, size] :
       std::vector<std::tuple<const char*, int64_t, int64_t>>{{"cifar", 20, 32}, {"imagenet", 18, 40}}) {
    const auto model = make_resnet(Options(resnet(shape, depth)), images({3, size, size}, 7));
    Plain plain;
    const auto blocks = blocks_of(*model, plain.layers);
    plain.store->state->training = true;
    for (int64_t rows : {2, 0}) {
      const Batch batch = batch_of(rows, 3, size, 7);
      const at::Tensor logits = forward(*model, blocks, batch)[0];
      ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{rows, 7}));
      logits.sum().backward();
      EXPECT_EQ(model->metrics({logits}, batch, plain.layers)[0].weight.item<double>(), double(rows));
    }
    for (const auto& parameter : plain.store->parameters) EXPECT_TRUE(parameter->value.grad().defined());
  }
}

// A block's tensors by name and plain operations.
at::Tensor conv_norm(const Plain& plain, const std::string& name, const at::Tensor& x, int64_t stride) {
  const at::Tensor& weight = plain.value(name + "_conv.weight");
  const at::Tensor h = at::conv2d(x, weight, {}, at::IntArrayRef{stride, stride},
                                  at::IntArrayRef{weight.size(2) / 2, weight.size(2) / 2});
  const at::Tensor mean = h.mean({0, 2, 3}, true);
  const at::Tensor variance = (h - mean).pow(2).mean({0, 2, 3}, true);
  const auto channels = [](const at::Tensor& v) { return v.view({1, -1, 1, 1}); };
  return (h - mean) / (variance + 1e-5).sqrt() * channels(plain.value(name + "_norm.weight")) +
         channels(plain.value(name + "_norm.bias"));
}

TEST(Resnet, BlocksComputeThePublishedFormulas) {
  struct Case {
    const char* shape;
    int64_t depth, index, in, stride;
  };
  // A plain block, a padded shortcut, a projected one, a bottleneck.
  for (const Case& one : {Case{"cifar", 20, 1, 16, 1}, Case{"cifar", 20, 4, 16, 2}, Case{"imagenet", 18, 3, 64, 2},
                          Case{"imagenet", 50, 1, 64, 1}}) {
    const auto model = make_resnet(Options(resnet(one.shape, one.depth)), images({3, 32, 32}, 10));
    Plain plain(at::kDouble);
    plain.store->state->training = true;
    const std::string name = model->block_name(one.index) + ".";
    const BlockPtr block = model->block(one.index, *plain.layers.scope(model->block_name(one.index)));
    const at::Tensor x = at::randn({2, one.in, 8, 8}, at::kDouble);
    at::Tensor h = conv_norm(plain, name + "first", x, one.depth == 50 ? 1 : one.stride).relu();
    h = conv_norm(plain, name + "second", h, one.depth == 50 ? one.stride : 1);
    if (one.depth == 50) h = conv_norm(plain, name + "third", h.relu(), 1);
    at::Tensor shortcut = x;
    if (std::string(one.shape) == "cifar" && one.stride == 2) {
      shortcut = at::zeros_like(h);
      for (int64_t c = 0; c < 16; ++c)
        for (int64_t i = 0; i < 16; ++i)
          shortcut.select(1, c + 8).select(1, i / 4).select(1, i % 4).copy_(
              x.select(1, c).select(1, i / 4 * 2).select(1, i % 4 * 2));
    } else if (plain.store->by_name.count(name + "shortcut_conv.weight") > 0) {
      shortcut = conv_norm(plain, name + "shortcut", x, one.stride);
    }
    EXPECT_LE((block->forward({x})[0] - (h + shortcut).relu()).abs().max().item<double>(), 1e-11) << name << one.depth;
  }
}

TEST(Resnet, RefusesOtherDepthsAndData) {
  const Schema small = images({3, 32, 32}, 10);
  EXPECT_THAT(message([&] { make_resnet(Options(resnet("cifar", 18)), small); }),
              HasSubstr("18 is none of shape cifar"));
  EXPECT_THAT(message([&] { make_resnet(Options(resnet("imagenet", 20)), small); }), HasSubstr("take 18, 34 or 50"));
  EXPECT_THAT(message([&] { make_resnet(Options(resnet("cifar", 20)), images({12}, 3)); }),
              HasSubstr("[channels, height, width]"));
  EXPECT_THAT(message([&] {
                make_resnet(Options(resnet("cifar", 20)), images({3, 32, 32}, 0));
              }),
              HasSubstr("no class per image"));
  const auto standard = [&](const char* shape) {
    return make_resnet(Options(Json{{"shape", shape}, {"depth", nullptr}}), small)->blocks();
  };
  EXPECT_EQ(standard("cifar"), 11);
  EXPECT_EQ(standard("imagenet"), 10);
}

TEST(Convnet, ComputesItsFormula) {
  for (bool norm : {true, false}) {
    const auto model = make_convnet(Options(convnet({4, 5}, 6, norm)), images({2, 9, 9}, 3));
    EXPECT_EQ(model->blocks(), 4);
    EXPECT_EQ(model->block_name(1), "conv.1");
    EXPECT_EQ(model->block_name(2), "hidden");
    EXPECT_EQ(model->block_name(3), "output");
    Plain plain(at::kDouble);
    const auto blocks = blocks_of(*model, plain.layers);
    plain.store->state->training = true;
    const Batch batch = batch_of(4, 2, 9, 3);
    at::Tensor h = batch.at("features");
    for (const char* name : {"conv.0.", "conv.1."}) {
      const auto value = [&](const char* tensor) { return plain.value(std::string(name) + tensor); };
      const std::optional<at::Tensor> bias = norm ? std::nullopt : std::optional<at::Tensor>(value("conv.bias"));
      h = at::conv2d(h, value("conv.weight"), bias, at::IntArrayRef{1, 1}, at::IntArrayRef{1, 1});
      if (norm) h = (h - h.mean({0, 2, 3}, true)) / (h.var({0, 2, 3}, false, true) + 1e-5).sqrt();
      h = at::max_pool2d(h.relu(), {2, 2});
    }
    h = at::linear(h.flatten(1), plain.value("hidden.linear.weight"), plain.value("hidden.linear.bias")).relu();
    h = at::linear(h, plain.value("output.linear.weight"), plain.value("output.linear.bias"));
    EXPECT_LE((forward(*model, blocks, batch)[0] - h).abs().max().item<double>(), 1e-12);
    EXPECT_EQ(plain.store->by_name.count("conv.0.conv.bias"), norm ? 0u : 1u);
    EXPECT_EQ(plain.store->buffers.size(), norm ? 4u : 0u);
  }
}

TEST(Convnet, AcceptsNoHiddenUnitsAndEmptyShares) {
  const auto model = make_convnet(Options(convnet({4}, 0)), images({1, 28, 28}, 10));
  EXPECT_EQ(model->blocks(), 2);
  Plain plain(at::kDouble);
  const auto blocks = blocks_of(*model, plain.layers);
  plain.store->state->training = true;
  for (int64_t rows : {3, 0}) {
    const at::Tensor logits = forward(*model, blocks, batch_of(rows, 1, 28, 10))[0];
    ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{rows, 10}));
    logits.sum().backward();
  }
  EXPECT_EQ(parameters_of(*model), 4 * 9 + 8 + 4 * 14 * 14 * 10 + 10);
}

TEST(Convnet, RefusesMismatchedSizes) {
  const Schema tiny = images({3, 4, 8}, 10);
  EXPECT_THAT(message([&] {
                make_convnet(Options(convnet({2, 2, 2}, 0)), tiny);
              }),
              HasSubstr("cannot be halved as often"));
  EXPECT_THAT(message([&] { make_convnet(Options(convnet({}, 0)), tiny); }), HasSubstr("needs a convolution"));
  Json even = convnet({2}, 0);
  even["kernel"] = 4;
  EXPECT_THAT(message([&] { make_convnet(Options(even), tiny); }), HasSubstr("an odd one"));
}

TEST(Images, PoolingAcceptsMembersBeforeRows) {
  const at::Tensor x = at::randn({2, 3, 4, 9, 9});
  const at::Tensor pooled = max_pooled(x, 3, 2, 1);
  ASSERT_EQ(pooled.sizes(), (std::vector<int64_t>{2, 3, 4, 5, 5}));
  EXPECT_TRUE(at::equal(pooled.select(0, 1), max_pooled(x.select(0, 1), 3, 2, 1)));
  EXPECT_EQ(max_pooled(x.slice(1, 0, 0), 2, 2).sizes(), (std::vector<int64_t>{2, 0, 4, 4, 4}));
}

}  // namespace
}  // namespace convoy
