// The resolved configuration: defaults, order, source locations, YAML that reads back, plugins that are checked later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/run_config.h"
#include "tests/support/config_text.h"

namespace convoy {
namespace {

using testing::config_error;
using testing::config_with;
using testing::read_config;
using testing::small_catalogues;
using testing::valid_config;

TEST(ConfigResolved, FillsInDefaultsInOrder) {
  const Json resolved = without_locations(read_config(valid_config).resolved);
  std::vector<std::string> keys;
  for (const auto& entry : resolved.items()) keys.push_back(entry.key());
  std::vector<std::string> described;
  for (const Option& option : run_options())
    if (option.name != "program") described.push_back(option.name);
  EXPECT_EQ(keys, described);
  EXPECT_EQ(resolved["model"].dump(),
            R"({"name":"net","width":8,"layers":[32,16],"dropout":0.0,"bias":true,"memory":1048576,)"
            R"("extra":null,"anything":null,"init_from":null,"freeze":null})");
  EXPECT_EQ(resolved["optimizer"].dump(), R"({"name":"adam","lr":0.001,"schedule":{"name":"constant"}})");
  EXPECT_EQ(resolved["strategy"].dump(), R"({"name":"many","sync":{"every":2,"what":"gradients"},"bucket":25.0})");
  EXPECT_EQ(resolved["loss"].dump(), "null");
  EXPECT_EQ(resolved["launch"]["ranks"], "auto");
  EXPECT_EQ(resolved["launch"]["heartbeat"].dump(), "60.0");
  EXPECT_EQ(resolved["train"]["evaluate_every"].dump(), R"({"every":1,"unit":"epochs"})");
}

TEST(ConfigResolved, TypedView) {
  const RunConfig config = read_config(config_with("epochs: 3", "epochs: 3, checkpoint_every: never, max_steps: 50"));
  EXPECT_EQ(config.name, "try");
  EXPECT_EQ(config.seed, 1u);
  EXPECT_EQ(config.model.name, "net");
  EXPECT_EQ(config.model.options.integer("width"), 8);
  EXPECT_EQ(config.loss.name, "");
  EXPECT_EQ(config.train.epochs, 3);
  EXPECT_EQ(config.train.max_steps, 50);
  EXPECT_EQ(config.train.batch.rows, 256);
  EXPECT_FALSE(config.train.batch.per_rank);
  EXPECT_EQ(config.train.checkpoint_every.unit, Interval::Unit::never);
  EXPECT_EQ(config.train.evaluate_every.unit, Interval::Unit::epochs);
  EXPECT_EQ(config.launch.ranks, 0);
  EXPECT_EQ(config.launch.address, "");
  EXPECT_EQ(config.log.level, "info");
}

TEST(ConfigResolved, MaxStepsAloneHasNoEpochs) {
  const std::string steps = config_with("epochs: 3", "max_steps: 50");
  const RunConfig alone = read_config(steps);
  EXPECT_EQ(alone.train.epochs, 0);
  EXPECT_EQ(alone.train.max_steps, 50);
  const RunConfig again = read_config(to_yaml(alone.resolved));
  EXPECT_EQ(without_locations(again.resolved), without_locations(alone.resolved));
  EXPECT_EQ(RunConfig::from_resolved(alone.resolved).train.epochs, 0);
  // A resolved file of an earlier version contains the default of that version, and keeps its meaning.
  EXPECT_EQ(read_config(config_with("epochs: 3", "epochs: 1, max_steps: 50")).train.epochs, 1);
  EXPECT_EQ(read_config(valid_config, {"train.max_steps=50"}).train.epochs, 3);
  EXPECT_EQ(read_config(valid_config, {"train.max_steps=50", "train.epochs=~"}).train.epochs, 0);
  EXPECT_EQ(read_config(config_with("epochs: 3, ", "")).train.epochs, 1);
  EXPECT_THAT(config_error(valid_config, {"train.epochs=~"}), ::testing::HasSubstr("train.epochs: is empty"));
}

TEST(ConfigResolved, ShorthandEqualsTheLongForm) {
  const std::string shorter = config_with("{name: many, sync: {every: 2}}", "many");
  const std::string longer = config_with("{name: many, sync: {every: 2}}", "{name: many}");
  EXPECT_EQ(first_difference(read_config(shorter).resolved, read_config(longer).resolved, {}), "");
  EXPECT_EQ(read_config(std::string(valid_config) + "loss: mse\n").loss.name, "mse");
}

TEST(ConfigResolved, YamlReadsBack) {
  const std::string odd = R"({"a.b": 1, "yes": 2, "$${": 3, "": 4, "a: b": 5, "~": 6})";
  const std::string any =
      R"({x: [1, {y: "010"}], s: "line\nbreak \"quoted\" \\ $${} é", t: "true", n: "~", e: "", m: {},
         l: [], f: 1.5, i: -3, b: false, k: 1e-8, o: [[1, [2]], [{a: 1, b: [{c: 2}]}], ~], d: "- x", h: "# c"})";
  const std::string text =
      config_with("width: 8", "width: 8, memory: 3 GiB, dropout: 1e-8, extra: " + odd + ", anything: " + any);
  const RunConfig first = read_config(text, {"train.evaluate_every=never", "data.transforms=[flip]"});
  const std::string yaml = to_yaml(first.resolved);
  ASSERT_EQ(config_error(yaml), "no error") << yaml;
  const RunConfig second = read_config(yaml);
  EXPECT_EQ(without_locations(second.resolved), without_locations(first.resolved)) << yaml;
  EXPECT_EQ(to_yaml(second.resolved), yaml);
}

TEST(ConfigResolved, FromResolvedEqualsRead) {
  const RunConfig config = read_config(valid_config, {"data.transforms=[flip, {name: flip, share: 1}]"});
  const RunConfig again = RunConfig::from_resolved(Json::parse(config.resolved.dump()));
  EXPECT_EQ(again.resolved, config.resolved);
  EXPECT_EQ(again.model.options.json(), config.model.options.json());
  EXPECT_EQ(again.data.options.sections("transforms").size(), 2u);
  EXPECT_EQ(again.train.batch.rows, config.train.batch.rows);
  EXPECT_EQ(again.launch.collective, config.launch.collective);
}

std::string failure_at(const Options& options, const std::string& key) {
  try {
    options.fail(key, "does not please");
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    return message.substr(message.rfind('/') + 1);  // the file's folder is a temporary one
  }
}

TEST(ConfigResolved, SourceLocationsReachRanks) {
  const RunConfig config = read_config(valid_config, {"model.dropout=0.5"});
  const RunConfig rank = RunConfig::from_resolved(Json::parse(config.resolved.dump()));
  EXPECT_EQ(failure_at(rank.model.options, "layers.1"), "run.yaml:2:43: model.layers.1: does not please");
  EXPECT_EQ(failure_at(rank.model.options, "dropout"), "--set model.dropout=0.5: model.dropout: does not please");
  // A default has the source location of its parent.
  EXPECT_EQ(failure_at(rank.model.options, "bias"), "run.yaml:2:8: model.bias: does not please");
  EXPECT_EQ(failure_at(rank.strategy.options.section("sync"), "every"),
            "run.yaml:8:38: strategy.sync.every: does not please");
  EXPECT_EQ(failure_at(rank.optimizer.options.section("schedule"), "name"),
            "run.yaml:5:3: optimizer.schedule.name: does not please");
}

std::vector<std::string> difference_texts(const Json& was, const Json& is, const std::vector<std::string>& ignored) {
  std::vector<std::string> texts;
  for (const Difference& difference : differences(was, is, ignored)) texts.push_back(to_string(difference));
  return texts;
}

TEST(ConfigResolved, AllDifferences) {
  using ::testing::ElementsAre;
  const Json base = read_config(valid_config).resolved;
  const Json other = read_config(valid_config, {"train.evaluate_every=7 steps", "train.epochs=9", "seed=4"}).resolved;
  EXPECT_THAT(difference_texts(base, other, {}),
              ::testing::UnorderedElementsAre("seed: 1 -> 4", "train.epochs: 3 -> 9",
                                              "train.evaluate_every: 1 epoch -> 7 steps"));
  EXPECT_THAT(difference_texts(base, other, {"train", "seed"}), ElementsAre());
  // Keys that a later version has added have their defaults if the file lacks them.
  Json older = base;
  older["train"].erase("keep_last");
  older.erase("randomness");
  EXPECT_THAT(difference_texts(older, base, {}), ElementsAre());
  EXPECT_THAT(difference_texts(older, read_config(valid_config, {"train.keep_last=5"}).resolved, {}),
              ElementsAre("train.keep_last: none -> 5"));
  // Another component has other options.
  const Json one = read_config(valid_config, {"strategy={name: one}"}).resolved;
  EXPECT_THAT(difference_texts(base, one, {}), ::testing::Contains(::testing::HasSubstr("strategy.name: many -> one")));
  EXPECT_THAT(difference_texts(base, one, {}), ::testing::Not(::testing::Contains(::testing::HasSubstr("none"))));
  // The same within sections.
  const Json ddp{{"strategy", {{"name", "ddp"}, {"sync", {{"every", 1}, {"compress", "none"}}}}}};
  const Json fsdp{{"strategy", {{"name", "fsdp"}, {"sync", {{"every", 1}}}}}};
  EXPECT_THAT(difference_texts(ddp, fsdp, {}), ElementsAre("strategy.name: ddp -> fsdp"));
  // With the same name, a missing option is a difference. The value "none" and a missing value have different texts.
  const Json dropped{{"strategy", {{"name", "ddp"}, {"sync", {{"every", 1}}}}}};
  EXPECT_THAT(difference_texts(ddp, dropped, {}), ElementsAre("strategy.sync.compress: \"none\" -> null"));
}

TEST(ConfigResolved, FirstDifference) {
  const auto resolved = [](const std::vector<std::string>& overrides) {
    return read_config(valid_config, overrides).resolved;
  };
  const Json base = resolved({});
  EXPECT_EQ(first_difference(base, resolved({}), {}), "");
  EXPECT_EQ(first_difference(base, resolved({"train.epochs=9"}), {}), "train.epochs");
  EXPECT_EQ(first_difference(base, resolved({"train.epochs=9"}), {"train.epochs"}), "");
  EXPECT_EQ(first_difference(base, resolved({"train.epochs=9", "launch.ranks=3"}), {"train.epochs", "launch"}), "");
  EXPECT_EQ(first_difference(base, resolved({"model.layers=[32, 17]"}), {"train"}), "model.layers.1");
  EXPECT_EQ(first_difference(base, resolved({"strategy.name=one"}), {}), "strategy.name");
  EXPECT_EQ(first_difference(base, resolved({"train.evaluate_every=7 steps"}), {}), "train.evaluate_every");
  EXPECT_EQ(first_difference(base, resolved({"train.keep_last=9"}), {"train.keep"}), "train.keep_last");
}

// The catalogues of a program that has loaded the plugin.
Catalogues with_plugin() {
  Catalogues all = small_catalogues();
  Option width;
  width.name = "width";
  width.type = OptionType::integer;
  width.required = true;
  width.minimum = 1;
  Option rate;
  rate.name = "rate";
  rate.type = OptionType::real;
  rate.fallback = 0.5;
  Option label;
  label.name = "label";
  label.fallback = "none";
  all.kinds["model"].push_back({"mine", "a plugin's", {width, rate, label}});
  all.kinds["loss"].push_back({"own_loss", "a plugin's", {rate}});
  return all;
}

TEST(ConfigPlugin, ChecksOptionsAfterLoading) {
  const std::string text = config_with("{name: net, width: 8, layers: [32, 16]}",
                                       "{plugin: /lib/libmine.so, width: 8, rate: 1.0e-3, label: 1.10}");
  const RunConfig unseen = read_config(text + "loss: {name: own_loss, rate: 2}\n");
  EXPECT_EQ(unseen.model.name, "plugin:/lib/libmine.so");
  const RunConfig seen = check_resolved(Json::parse(unseen.resolved.dump()), with_plugin(), "mine");
  EXPECT_EQ(seen.model.name, "mine");
  EXPECT_EQ(seen.model.options.json().dump(),
            R"({"name":"mine","plugin":"/lib/libmine.so","width":8,"rate":0.001,"label":"1.10",)"
            R"("init_from":null,"freeze":null})");
  EXPECT_EQ(seen.loss.options.real("rate"), 2);
  const RunConfig again = check_resolved(seen.resolved, with_plugin(), "mine");
  EXPECT_EQ(first_difference(again.resolved, seen.resolved, {}), "");
}

std::string later_error(const std::string& text, const std::string& model) {
  const RunConfig unseen = read_config(text);
  try {
    check_resolved(unseen.resolved, with_plugin(), model);
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    return message.substr(message.rfind('/') + 1);
  }
  return "no error";
}

TEST(ConfigPlugin, ReportsMistakesInTheSameForm) {
  const auto model = [](const std::string& keys) {
    return config_with("{name: net, width: 8, layers: [32, 16]}", "{plugin: /a.so, " + keys + "}");
  };
  EXPECT_EQ(later_error(model("widht: 8"), "mine"), "run.yaml:2:31: model.widht: unknown key; did you mean width?");
  EXPECT_EQ(later_error(model("width: 010"), "mine"),
            "run.yaml:2:31: model.width: is '010', must be an integer without leading zeros (octal or decimal?)");
  EXPECT_EQ(later_error(model("width: 0"), "mine"), "run.yaml:2:31: model.width: is 0, must be at least 1");
  EXPECT_EQ(later_error(model("rate: 1"), "mine"), "run.yaml:2:8: model.width: is missing and required");
  EXPECT_EQ(later_error(model("name: mnie, width: 1"), ""),
            "run.yaml:2:30: model.name: unknown model 'mnie'; did you mean mine?");
  EXPECT_EQ(later_error(model("width: 1") + "loss: own_los\n", "mine"),
            "run.yaml:9:7: loss.name: unknown loss 'own_los'; did you mean own_loss?");
}

TEST(ConfigPlugin, PathsAndNames) {
  EXPECT_EQ(
      config_error(config_with("{name: net,", "{plugin: libmine.so,")),
      "run.yaml:2:17: model.plugin: must be an absolute path, so that it is clear what is loaded; is 'libmine.so'");
  EXPECT_EQ(config_error(std::string(valid_config) + "plugins: [lib.so]\n"),
            "run.yaml:9:11: plugins.0: is 'lib.so', must be an absolute path, so that it is clear what is loaded");
  // Plugins cannot add strategies: these names are known at once.
  EXPECT_EQ(config_error(config_with("name: many", "name: mayn") + "plugins: [/lib.so]\n"),
            "run.yaml:8:18: strategy.name: unknown strategy 'mayn'; did you mean many?");
  EXPECT_EQ(config_error(config_with("name: net", "name: theirs") + "plugins: [/lib.so]\n"), "no error");
  EXPECT_EQ(config_error(config_with("width: 8", "widht: 8") + "plugins: [/lib.so]\n"),
            "run.yaml:2:20: model.widht: unknown key; did you mean width?");
}

}  // namespace
}  // namespace convoy
