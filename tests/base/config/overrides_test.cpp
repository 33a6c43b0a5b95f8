// Overrides by --set.
#include <gtest/gtest.h>

#include "tests/support/config_text.h"

namespace convoy {
namespace {

using testing::config_error;
using testing::config_with;
using testing::read_config;
using testing::valid_config;

std::string error_with(const std::vector<std::string>& overrides) { return config_error(valid_config, overrides); }
RunConfig config_set(const std::vector<std::string>& overrides) { return read_config(valid_config, overrides); }

TEST(ConfigSet, Values) {
  EXPECT_EQ(config_set({"train.epochs=7"}).train.epochs, 7);
  EXPECT_EQ(config_set({"train.epochs=7", "train.epochs=8"}).train.epochs, 8);
  EXPECT_EQ(config_set({"launch.ranks=4"}).launch.ranks, 4);
  EXPECT_EQ(config_set({"model.layers=[1, 2, 3]"}).model.options.integers("layers"), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(config_set({"train.batch={per_rank: 8}"}).train.batch.rows, 8);
  EXPECT_EQ(config_set({"train.evaluate_every=100 steps"}).train.evaluate_every.every, 100);
  EXPECT_EQ(config_set({"backend=gloo"}).backend, "gloo");
  EXPECT_EQ(config_set({"train.resume=/a=b#c"}).train.resume, "/a=b#c");
}

TEST(ConfigSet, EmptyValueIsNull) {
  const RunConfig config = config_set({"train.batch.global=", "train.batch.per_rank=4"});
  EXPECT_TRUE(config.train.batch.per_rank);
  EXPECT_EQ(error_with({"name="}), "--set name=: name: is empty and required");
}

TEST(ConfigSet, ItemsOfLists) {
  EXPECT_EQ(config_set({"model.layers.1=99"}).model.options.integers("layers"), (std::vector<int64_t>{32, 99}));
  EXPECT_EQ(config_set({"model.layers.2=99"}).model.options.integers("layers"), (std::vector<int64_t>{32, 16, 99}));
  EXPECT_EQ(error_with({"model.layers.3=99"}),
            "--set model.layers.3=99: model.layers: is a list of 2; name an item from 0 to 2 of it");
  EXPECT_EQ(error_with({"model.layers.last=99"}),
            "--set model.layers.last=99: model.layers: is a list of 2; name an item from 0 to 2 of it");
  const std::string text = config_with("rows: 1000", "transforms: [{name: flip, share: 0.1}]");
  EXPECT_EQ(read_config(text, {"data.transforms.0.share=0.7"}).data.options.sections("transforms")[0].real("share"),
            0.7);
}

TEST(ConfigSet, KeysWithDots) {
  EXPECT_EQ(config_set({"model.extra.\"a.b\"=3"}).model.options.json()["extra"].dump(), R"({"a.b":3.0})");
}

TEST(ConfigSet, ReportsMistakesAtTheArgument) {
  EXPECT_EQ(error_with({"train.epoch=3"}), "--set train.epoch=3: train.epoch: unknown key; did you mean epochs?");
  EXPECT_EQ(error_with({"trian.epochs=3"}), "--set trian.epochs=3: trian: unknown key; did you mean train?");
  EXPECT_EQ(error_with({"train.epochs=3.5"}), "--set train.epochs=3.5: train.epochs: is '3.5', must be a whole number");
  EXPECT_EQ(error_with({"train.epochs.x=1"}), "--set train.epochs.x=1: train.epochs: must be an integer, not a map");
  EXPECT_EQ(error_with({"model.layers=[1"}),
            "--set model.layers=[1: a key must be plain text, not a list or map; or is a bracket left open?");
  EXPECT_EQ(error_with({"name=!!str x"}), "--set name=!!str x: tags (!…) have no meaning here; leave it out");
  EXPECT_EQ(error_with({"name=a\x01z"}),
            "--set name=a\\x01z: holds a control character; write it as an escape in "
            "double quotes");
}

TEST(ConfigSet, MissingRequiredKeyStaysAtTheFile) {
  EXPECT_EQ(config_error(config_with("  lr: 1.0e-3\n", ""), {"optimizer.name=sgd"}),
            "run.yaml:5:3: optimizer.lr: is missing and required: rate");
}

TEST(ConfigSet, NoAssignment) {
  const std::string form = "; write --set KEY=VALUE, such as --set train.epochs=3";
  EXPECT_EQ(error_with({"train.epochs"}), "command_line --set train.epochs: no = in it" + form);
  EXPECT_EQ(error_with({"=3"}), "command_line --set =3: no key before =" + form);
  EXPECT_EQ(error_with({"train.=3"}), "command_line --set train.=3: no key before =" + form);
  EXPECT_EQ(error_with({".a=3"}), "command_line --set .a=3: an empty key before a dot" + form);
  EXPECT_EQ(error_with({"\"a=3"}), "command_line --set \"a=3: a quote that does not end" + form);
}

TEST(ConfigSet, ANewComponentDropsTheFilesKeys) {
  const RunConfig config = config_set({"strategy.name=one"});
  EXPECT_EQ(config.strategy.name, "one");
  EXPECT_EQ(config.strategy.options.json().dump(), R"({"name":"one"})");
  ASSERT_EQ(config.warnings.size(), 1u);
  EXPECT_NE(config.warnings[0].find(
                "run.yaml:8:24: strategy.sync: ignored, because the component from --set has no such option"),
            std::string::npos)
      << config.warnings[0];
}

TEST(ConfigSet, ANewComponentKeepsTheKeysThatItHas) {
  const RunConfig config = config_set({"optimizer.name=sgd"});
  EXPECT_EQ(config.optimizer.name, "sgd");
  EXPECT_EQ(config.optimizer.options.real("lr"), 1e-3);
  EXPECT_TRUE(config.warnings.empty());
}

TEST(ConfigSet, ChecksKeysOfSetAgainstTheNewComponent) {
  EXPECT_EQ(error_with({"strategy.name=one", "strategy.sync.every=8"}),
            "run.yaml:8:30: strategy.sync: unknown key; valid here: name");
  EXPECT_EQ(error_with({"strategy.name=one", "strategy.bucket=8"}),
            "--set strategy.bucket=8: strategy.bucket: unknown key; valid here: name");
}

TEST(ConfigSet, TheSameNameDropsNothing) {
  EXPECT_EQ(config_error(config_with("sync:", "snyc:"), {"strategy.name=many"}),
            "run.yaml:8:24: strategy.snyc: unknown key; did you mean sync?");
}

TEST(ConfigSet, ExpandsAShorthand) {
  const std::string text = config_with("{name: many, sync: {every: 2}}", "many");
  EXPECT_EQ(read_config(text, {"strategy.sync.every=8"}).strategy.options.section("sync").integer("every"), 8);
  EXPECT_EQ(read_config(text, {"strategy=one"}).strategy.name, "one");
  EXPECT_EQ(read_config(text, {"strategy.name=one"}).strategy.name, "one");
}

}  // namespace
}  // namespace convoy
