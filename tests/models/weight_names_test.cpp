// Names of tensors in Python: numbers of blocks and stages in them, and a config.json for models of transformers only.
#include <gtest/gtest.h>

#include "core/checkpoint/weight_names.h"
#include "models/catalogue/catalogue.h"
#include "models/registry.h"

namespace convoy {
namespace {

std::string single(const WeightNames& names, const std::string& ours) {
  const WeightName name = names.of(ours);
  EXPECT_EQ(name.theirs.size(), 1u) << ours;
  return name.theirs.front();
}

// An entry's defaults, changed by `values`.
Options with_defaults(const Entry& entry, const Json& values) {
  Json all = Json::object();
  for (const Option& option : entry.options) all[option.name] = option.fallback.json();
  all.update(values);
  return Options(all);
}

TEST(NamesInPython, NumberTheStagesOfAResnet) {
  const auto names = [](int depth) {
    return weight_names("resnet", with_defaults(resnet_entry(), {{"shape", "imagenet"}, {"depth", depth}}));
  };
  EXPECT_EQ(single(names(18), "stem.first_conv.weight"), "conv1.weight");
  EXPECT_EQ(single(names(18), "blocks.2.shortcut_conv.weight"), "layer2.0.downsample.0.weight");
  EXPECT_EQ(single(names(18), "blocks.7.second_norm.running_var"), "layer4.1.bn2.running_var");
  EXPECT_EQ(single(names(50), "blocks.3.shortcut_norm.bias"), "layer2.0.downsample.1.bias");
  EXPECT_EQ(single(names(50), "blocks.15.third_conv.weight"), "layer4.2.conv3.weight");
  EXPECT_EQ(single(names(50), "output.linear.bias"), "fc.bias");
  EXPECT_TRUE(names(50).ignores("layer3.4.bn1.num_batches_tracked"));
  EXPECT_TRUE(names(50).ignores("layer3.0.downsample.1.num_batches_tracked"));
  EXPECT_FALSE(names(50).config);
  const WeightNames small = weight_names("resnet", with_defaults(resnet_entry(), {{"shape", "cifar"}, {"depth", 20}}));
  EXPECT_EQ(single(small, "blocks.3.first_conv.weight"), "layer2.0.conv1.weight");
}

TEST(NamesInPython, HaveAConfigurationOnlyForModelsOfTransformers) {
  const auto gpt = [](const Json& values) { return weight_names("gpt", with_defaults(gpt_entry(), values)); };
  EXPECT_TRUE(gpt({{"activation", "gelu_tanh"}}).config);
  EXPECT_FALSE(gpt({{"positions", "rotary"}}).config);
  EXPECT_NE(gpt({{"positions", "rotary"}}).no_config.find("rotary"), std::string::npos);
  EXPECT_FALSE(gpt({{"bias", false}}).config);
  EXPECT_FALSE(weight_names("of_a_plugin", Options()).config);
}

TEST(NamesInPython, WriteTheConfigurationThatTheyRead) {
  const WeightNames names = weight_names(
      "llama",
      with_defaults(
          llama_entry(),
          {{"layers", 2}, {"heads", 4}, {"kv_heads", 2}, {"dim", 32}, {"rotary_base", 5e5}, {"norm_eps", 1e-6}}));
  const auto shape_of = [](const std::string& ours) {
    return ours == "embedding.tokens.weight" ? std::vector<int64_t>{100, 32} : std::vector<int64_t>{32, 48};
  };
  const Json json = config_json(*names.config, shape_of);
  EXPECT_EQ(json["vocab_size"], 100);
  EXPECT_EQ(json["intermediate_size"], 48);
  EXPECT_EQ(json["num_key_value_heads"], 2);
  EXPECT_EQ(json["head_dim"], 8);
  EXPECT_EQ(json["rope_parameters"]["rope_theta"], 5e5);
  EXPECT_TRUE(config_differences(*names.config, json).empty());
  Json other = json;
  other["num_key_value_heads"] = 4;
  other["attention_bias"] = true;
  EXPECT_EQ(config_differences(*names.config, other).size(), 2u);
  const WeightName fused = names.of("blocks.1.qkv.weight");
  EXPECT_EQ(fused.theirs[1], "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(stored_shapes(fused, {64, 32}), (std::vector<std::vector<int64_t>>{{32, 32}, {16, 32}, {16, 32}}));
}

}  // namespace
}  // namespace convoy
