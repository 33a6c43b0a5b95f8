// Keys, types, ranges and defaults: each mistake with its location, key, reason and the nearest valid word.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "core/config/node.h"
#include "tests/support/config_text.h"

namespace convoy {
namespace {

using testing::config_error;
using testing::config_with;
using testing::read_config;
using testing::valid_config;

std::string with_epochs(const std::string& value) { return config_error(config_with("epochs: 3", "epochs: " + value)); }
std::string with_lr(const std::string& value) { return config_error(config_with("lr: 1.0e-3", "lr: " + value)); }
std::string with_launch(const std::string& keys) { return config_error(valid_config + ("launch: {" + keys + "}\n")); }

TEST(ConfigKeys, Unknown) {
  EXPECT_EQ(config_error(config_with("optimizer:", "optimzer:")),
            "run.yaml:4:1: optimzer: unknown key; did you mean optimizer?");
  EXPECT_EQ(config_error(config_with("epochs: 3", "epoch: 3")),
            "run.yaml:7:9: train.epoch: unknown key; did you mean epochs?");
  EXPECT_EQ(config_error(config_with("{global", "{globule: 1, global")),
            "run.yaml:7:28: train.batch.globule: unknown key; did you mean global?");
  EXPECT_EQ(config_error(config_with("every: 2", "frequency: 2")),
            "run.yaml:8:31: strategy.sync.frequency: unknown key; valid here: every, what");
  EXPECT_EQ(config_error(config_with("width: 8", "widht: 8")),
            "run.yaml:2:20: model.widht: unknown key; did you mean width?");
  EXPECT_EQ(
      config_error(config_with("rows: 1000", "walrus: 1")),
      "run.yaml:3:20: data.walrus: unknown key; valid here: name, rows, transforms, prefetch, changed, samples, seed");
}

TEST(ConfigKeys, RefusesAFoldBeyondTheNumberOfFolds) {
  const auto with_fold = [](const std::string& fold) {
    return config_error(config_with("rows: 1000", "rows: 1000, samples: {how: folds, folds: 3, fold: " + fold + "}"));
  };
  EXPECT_EQ(with_fold("2"), "no error");
  EXPECT_NE(with_fold("3").find("data.samples.fold: is 3, must be below folds, 3: they count from 0"),
            std::string::npos)
      << with_fold("3");
}

TEST(ConfigKeys, OneLevelTooHigh) {
  EXPECT_EQ(config_error(config_with("name: try", "name: try\nepochs: 3")),
            "run.yaml:2:1: epochs: unknown key; did you mean train.epochs?");
}

TEST(ConfigKeys, EscapesControlCharactersInKeys) {
  EXPECT_EQ(config_error(config_with("name: try", "name: try\n\"x\\e[2Jyyyyyyyy\": 3")),
            "run.yaml:2:1: x\\x1b[2Jyyyyyyyy: unknown key; valid here: name, seed, device, precision, randomness, "
            "plugins, model, data, loss, optimizer, strategy, program, backend, train, launch, log, profile");
}

TEST(ConfigKeys, Missing) {
  EXPECT_EQ(
      config_error(config_with("name: try\n", "")),
      "run.yaml:1:1: name: is missing and required: name of the run and its folder: letters, digits, '.', '_', '-'");
  EXPECT_EQ(config_error(config_with("  lr: 1.0e-3\n", "")),
            "run.yaml:5:3: optimizer.lr: is missing and required: rate");
  EXPECT_EQ(config_error(config_with("  name: adam\n", "")),
            "run.yaml:5:3: optimizer.name: is missing and required: which optimizer; valid are adam, sgd");
}

TEST(ConfigKeys, NullForRequired) {
  EXPECT_EQ(config_error(config_with("name: try", "name:")), "run.yaml:1:1: name: is empty and required");
  EXPECT_EQ(config_error(config_with("lr: 1.0e-3", "lr: ~")), "run.yaml:6:7: optimizer.lr: is empty and required");
  EXPECT_EQ(with_epochs("null"), "run.yaml:7:17: train.epochs: is empty; leave the key out for its default");
  EXPECT_EQ(config_error(config_with("name: adam", "name: ~")),
            "run.yaml:5:9: optimizer.name: must be the name of one optimizer");
}

TEST(ConfigKeys, AcceptsNullForAnOptionalKey) {
  const RunConfig without = read_config(valid_config);
  const RunConfig with = read_config(config_with("rows: 1000", "rows: 1000, transforms: ~"));
  EXPECT_EQ(with.resolved["data"], without.resolved["data"]);
  EXPECT_EQ(locations_of(with.resolved).count("data.transforms"), 0u) << "as if it were not written";
  EXPECT_EQ(read_config(config_with("layers: [32, 16]", "layers: ~")).resolved["model"]["layers"], Json::array());
}

TEST(ConfigTypes, Integers) {
  EXPECT_EQ(with_epochs("010"),
            "run.yaml:7:17: train.epochs: is '010', must be an integer without leading zeros (octal or decimal?)");
  EXPECT_EQ(with_epochs("1e3"),
            "run.yaml:7:17: train.epochs: is '1e3', must be an integer written in digits; did you mean 1000?");
  EXPECT_EQ(with_epochs("3.0"),
            "run.yaml:7:17: train.epochs: is '3.0', must be an integer written in digits; did you mean 3?");
  EXPECT_EQ(with_epochs("3.7"), "run.yaml:7:17: train.epochs: is '3.7', must be a whole number");
  EXPECT_EQ(with_epochs("0x10"), "run.yaml:7:17: train.epochs: is '0x10', must be an integer");
  EXPECT_EQ(with_epochs("1_000"), "run.yaml:7:17: train.epochs: is '1_000', must be an integer");
  EXPECT_EQ(with_epochs(".inf"), "run.yaml:7:17: train.epochs: is '.inf', must be an integer");
  EXPECT_EQ(with_epochs("100000001"),
            "run.yaml:7:17: train.epochs: is 100000001, must be at least 1, at most 100000000 epochs");
  EXPECT_EQ(with_epochs("many"), "run.yaml:7:17: train.epochs: is 'many', must be an integer");
  EXPECT_EQ(with_epochs("9223372036854775808"),
            "run.yaml:7:17: train.epochs: is '9223372036854775808', does not fit into 64 bits");
  EXPECT_EQ(with_epochs("\"3\""),
            "run.yaml:7:17: train.epochs: is text in quotes, must be an integer; leave the quotes out");
  EXPECT_EQ(with_epochs("9223372036854775807"),
            "run.yaml:7:17: train.epochs: is 9223372036854775807, must be at least 1, at most 100000000 epochs");
  EXPECT_EQ(with_epochs("100000000"), "no error");
}

TEST(ConfigTypes, Ranges) {
  EXPECT_EQ(with_epochs("0"), "run.yaml:7:17: train.epochs: is 0, must be at least 1, at most 100000000 epochs");
  EXPECT_EQ(with_epochs("-3"), "run.yaml:7:17: train.epochs: is -3, must be at least 1, at most 100000000 epochs");
  EXPECT_EQ(config_error(config_with("256", "0")),
            "run.yaml:7:36: train.batch.global: is 0, must be at least 1, at most 1000000000 rows");
  EXPECT_EQ(config_error(config_with("width: 8", "dropout: 1.5")),
            "run.yaml:2:29: model.dropout: is 1.5, must be at least 0, at most 1");
  EXPECT_EQ(with_lr("0"), "run.yaml:6:7: optimizer.lr: is 0, must be above 0");
  EXPECT_EQ(config_error(config_with("[32, 16]", "[32, 0]")),
            "run.yaml:2:43: model.layers.1: is 0, must be at least 1");
}

TEST(ConfigTypes, Reals) {
  EXPECT_EQ(with_lr(".nan"), "run.yaml:6:7: optimizer.lr: is '.nan', must be a finite number");
  EXPECT_EQ(with_lr("-.inf"), "run.yaml:6:7: optimizer.lr: is '-.inf', must be a finite number");
  EXPECT_EQ(with_lr("inf"), "run.yaml:6:7: optimizer.lr: is 'inf', must be a finite number");
  EXPECT_EQ(with_lr("1e999"), "run.yaml:6:7: optimizer.lr: is '1e999', does not fit into a 64-bit real");
  EXPECT_EQ(with_lr("1e308"),
            "run.yaml:6:7: optimizer.lr: is '1e308', must be within ±3.4e38, the range of 32-bit floating point");
  EXPECT_EQ(with_lr("0.1.2"), "run.yaml:6:7: optimizer.lr: is '0.1.2', must be a number");
  EXPECT_EQ(with_lr("1e-3x"), "run.yaml:6:7: optimizer.lr: is '1e-3x', must be a number");
  for (const char* value : {"1", "1.0e-3", "1e-3", "+2.", ".5", "1E2"}) EXPECT_EQ(with_lr(value), "no error") << value;
  EXPECT_EQ(read_config(config_with("lr: 1.0e-3", "lr: 1")).optimizer.options.json()["lr"].dump(), "1.0");
}

TEST(ConfigTypes, Booleans) {
  const auto with_bias = [](const std::string& value) {
    return config_error(config_with("width: 8", "bias: " + value));
  };
  for (const char* value : {"yes", "on", "True", "1"}) {
    EXPECT_EQ(with_bias(value),
              str("run.yaml:2:26: model.bias: is '", value, "', must be true or false; did you mean true?"));
  }
  for (const char* value : {"no", "off", "FALSE", "0"}) {
    EXPECT_EQ(with_bias(value),
              str("run.yaml:2:26: model.bias: is '", value, "', must be true or false; did you mean false?"));
  }
  EXPECT_EQ(with_bias("false"), "no error");
}

TEST(ConfigTypes, WrongKinds) {
  EXPECT_EQ(with_epochs("[3]"), "run.yaml:7:17: train.epochs: must be an integer, not a list");
  EXPECT_EQ(with_epochs("{a: 3}"), "run.yaml:7:17: train.epochs: must be an integer, not a map");
  EXPECT_EQ(config_error(config_with("[32, 16]", "32")),
            "run.yaml:2:38: model.layers: must be a list of integers, not a single value; did you mean [32]?");
  EXPECT_EQ(config_error(config_with("{global: 256}", "256")),
            "run.yaml:7:27: train.batch: must be a map, not a single value");
  EXPECT_EQ(config_error(config_with("name: try", "name: [a]")), "run.yaml:1:7: name: must be text, not a list");
  EXPECT_EQ(config_error(config_with("{name: many, sync: {every: 2}}", "[many]")),
            "run.yaml:8:11: strategy: must be the name of a strategy or a map with one, not a list");
}

TEST(ConfigTypes, ChoicesAndNames) {
  EXPECT_EQ(config_error(config_with("name: try", "name: try\nprecision: fp23")),
            "run.yaml:2:12: precision: is 'fp23', must be one of fp64, fp32, bf16, fp16; did you mean fp32?");
  EXPECT_EQ(config_error(config_with("name: try", "name: try\ndevice: quantum")),
            "run.yaml:2:9: device: is 'quantum', must be one of auto, cpu, cuda");
  EXPECT_EQ(config_error(config_with("name: try", "name: try\nbackend: glo")),
            "run.yaml:2:10: backend: unknown backend 'glo'; did you mean gloo?");
  EXPECT_EQ(config_error(config_with("name: try", "name: try\nbackend: carrier-pigeon")),
            "run.yaml:2:10: backend: unknown backend 'carrier-pigeon'; valid are auto, gloo, local, mpi");
}

TEST(ConfigTypes, UnknownComponents) {
  EXPECT_EQ(config_error(config_with("name: many", "name: mayn")),
            "run.yaml:8:18: strategy.name: unknown strategy 'mayn'; did you mean many?");
  EXPECT_EQ(config_error(config_with("name: net", "name: transformer")),
            "run.yaml:2:15: model.name: unknown model 'transformer'; valid are net, tower");
  EXPECT_EQ(config_error(config_with("name: made", "name: mode")),
            "run.yaml:3:14: data.name: unknown data 'mode'; did you mean made?");
  EXPECT_EQ(config_error(config_with("name: adam", "name: Adam2")),
            "run.yaml:5:9: optimizer.name: unknown optimizer 'Adam2'; did you mean adam?");
  EXPECT_EQ(config_error(config_with("strategy: {name: many, sync: {every: 2}}", "strategy: mayn")),
            "run.yaml:8:11: strategy: unknown strategy 'mayn'; did you mean many?");
  EXPECT_EQ(config_error(config_with("rows: 1000", "transforms: [{name: flop}]")),
            "run.yaml:3:40: data.transforms.0.name: unknown transform 'flop'; did you mean flip?");
}

TEST(ConfigTypes, DurationsSizesIntervals) {
  EXPECT_EQ(with_launch("heartbeat: 0"),
            "run.yaml:9:21: launch.heartbeat: is 0, must be above 0, at most 2592000 seconds");
  EXPECT_EQ(with_launch("rendezvous: 0s"),
            "run.yaml:9:22: launch.rendezvous: is 0s, must be above 0, at most 2592000 seconds");
  EXPECT_EQ(with_launch("grace: -1s"), "run.yaml:9:17: launch.grace: is -1s, must be above 0, at most 2592000 seconds");
  EXPECT_EQ(with_launch("grace: soon"),
            "run.yaml:9:17: launch.grace: is 'soon', must be a duration such as 90s, 1.5 min or 2h");
  EXPECT_EQ(with_launch("grace: .inf"), "run.yaml:9:17: launch.grace: is '.inf', must be a finite duration");
  EXPECT_EQ(with_launch("grace: 1.5 min, collective: 2h, rendezvous: 500ms, heartbeat: 7"), "no error");
  EXPECT_EQ(config_error(config_with("width: 8", "memory: 1 MB/s")),
            "run.yaml:2:28: model.memory: is '1 MB/s', must be a size such as 512 MiB or 2GB");
  EXPECT_EQ(config_error(config_with("width: 8", "memory: 1.5")),
            "run.yaml:2:28: model.memory: is '1.5', must be a size such as 512 MiB, or a whole number of bytes");
  EXPECT_EQ(config_error(config_with("epochs: 3", "evaluate_every: 100")),
            "run.yaml:7:25: train.evaluate_every: is '100', needs a unit; did you mean 100 steps?");
  EXPECT_EQ(config_error(config_with("epochs: 3", "evaluate_every: 0 steps")),
            "run.yaml:7:25: train.evaluate_every: is '0 steps', must be at least 1 step or epoch, or the word never");
  EXPECT_EQ(config_error(config_with("epochs: 3", "evaluate_every: daily")),
            "run.yaml:7:25: train.evaluate_every: is 'daily', must be an interval such as 100 steps, 1 epoch or never");
}

TEST(ConfigTypes, Ports) {
  EXPECT_EQ(with_launch("port: 0"), "run.yaml:9:16: launch.port: is 0, must be at least 1, at most 65535");
  EXPECT_EQ(with_launch("port: 70000"), "run.yaml:9:16: launch.port: is 70000, must be at least 1, at most 65535");
  EXPECT_EQ(with_launch("port: auto"), "no error");
  EXPECT_EQ(with_launch("port: http"), "run.yaml:9:16: launch.port: is 'http', must be an integer, or auto");
}

TEST(ConfigWhole, ComparesHeartbeatWithCollectiveLimit) {
  EXPECT_EQ(with_launch("address: nonsense"),
            "run.yaml:9:19: launch.address: is 'nonsense', must be a numeric IPv4 or IPv6 address, such as 10.0.0.5, "
            "or a network, such as 10.0.0.0/16; or auto");
  for (const char* every : {"0.0.0.0", "'::'"})
    EXPECT_NE(with_launch(std::string("address: ") + every).find("means every interface"), std::string::npos) << every;
  for (const char* one : {"127.0.0.1", "'::1'", "auto"})
    EXPECT_EQ(with_launch(std::string("address: ") + one), "no error");
  EXPECT_EQ(with_launch("heartbeat: 20 min"),
            "run.yaml:9:21: launch.heartbeat: is 20 min 0 s, must not be longer than launch.collective, 10 min 0 s");
  EXPECT_EQ(with_launch("collective: 5s, heartbeat: 6s"),
            "run.yaml:9:37: launch.heartbeat: is 6 s, must not be longer than launch.collective, 5 s");
  // The default changes with it.
  EXPECT_EQ(read_config(valid_config + std::string("launch: {collective: 5s}\n")).launch.heartbeat, 5);
}

TEST(ConfigWhole, Batch) {
  EXPECT_EQ(config_error(config_with("{global: 256}", "{global: 256, per_rank: 4}")),
            "run.yaml:7:27: train.batch: has both global and per_rank; give one of them");
  EXPECT_EQ(config_error(config_with("{global: 256}", "{}")),
            "run.yaml:7:27: train.batch: is empty; give global, the rows over all ranks, or per_rank");
  EXPECT_EQ(
      config_error(config_with(", batch: {global: 256}", "")),
      "run.yaml:7:8: train.batch: is missing and required: batch size of a step; set exactly one of the two keys");
}

TEST(ConfigWhole, Names) {
  const auto with_name = [](const std::string& name) {
    return config_error(config_with("name: try", "name: " + name));
  };
  EXPECT_EQ(with_name("\"a\\x07b\""),
            "run.yaml:1:7: name: is 'a\\x07b', holds a control character; use letters, digits, '.', '_' and '-'");
  EXPECT_EQ(with_name("../up"),
            "run.yaml:1:7: name: is '../up', holds a character that names may not; use letters, "
            "digits, '.', '_' and '-'");
  EXPECT_EQ(with_name(".hidden"), "run.yaml:1:7: name: is '.hidden', must start with a letter, digit or _");
  EXPECT_EQ(with_name("\"\""), "run.yaml:1:7: name: is empty; it names the run's folder: write a name, such as mlp");
  EXPECT_EQ(with_name(std::string(129, 'x')),
            "run.yaml:1:7: name: has more than 128 characters; it names the run's folder: shorten it");
  EXPECT_EQ(with_name("2024-run_1.b"), "no error");
}

TEST(ConfigEnvironment, Variables) {
  setenv("CONVOY_TEST_WIDTH", "12", 1);
  setenv("CONVOY_TEST_CONTROL", "a\x1b[31m", 1);
  unsetenv("CONVOY_TEST_UNSET");
  EXPECT_EQ(read_config(config_with("width: 8", "width: \"${CONVOY_TEST_WIDTH}\"")).model.options.integer("width"), 12);
  EXPECT_EQ(read_config(config_with("name: try", "name: a${CONVOY_TEST_WIDTH}-${CONVOY_TEST_WIDTH}")).name, "a12-12");
  EXPECT_EQ(config_error(config_with("width: 8", "width: '${CONVOY_TEST_UNSET}'")),
            "run.yaml:2:27: model.width: the environment variable CONVOY_TEST_UNSET is not set; export it, or write "
            "the value here");
  EXPECT_EQ(config_error(config_with("name: try", "name: ${a")),
            "run.yaml:1:7: name: ${ without a }; write $${ for a literal ${");
  EXPECT_EQ(config_error(config_with("name: try", "name: ${a b}")),
            "run.yaml:1:7: name: 'a b' is no name of a variable; write $${ for a literal ${");
  EXPECT_EQ(config_error(config_with("name: try", "name: ${CONVOY_TEST_CONTROL}")),
            "run.yaml:1:7: holds a control character; write it as an escape in double quotes");
  EXPECT_EQ(config_error(config_with("width: 8", "width: ${CONVOY_TEST_WIDTH}")),
            "run.yaml:2:28: not valid YAML: end of map flow not found; between { } or [ ] write \"${VAR}\" in quotes");
  const RunConfig literal = read_config(config_with("epochs: 3", "resume: \"/a/$${b}\""));
  EXPECT_EQ(literal.train.resume, "/a/${b}");
  EXPECT_EQ(read_config(to_yaml(literal.resolved)).train.resume, "/a/${b}");
}

TEST(ConfigEnvironment, LimitsExpansion) {
  setenv("CONVOY_TEST_LONG", std::string(100000, 'x').c_str(), 1);
  std::string many;
  for (int i = 0; i < 20; ++i) many += "${CONVOY_TEST_LONG}";
  EXPECT_EQ(config_error(config_with("name: try", "name: " + many)),
            "run.yaml:1:7: name: more than 1 MiB of text after ${} was replaced");
  unsetenv("CONVOY_TEST_LONG");
}

TEST(ConfigValues, AcceptsAListOfCores) {
  EXPECT_EQ(with_launch("bind: list, cores: [0-1, 2+5]"), "no error");
  EXPECT_EQ(with_launch("bind: list"),
            "run.yaml:9:16: launch.bind: is list, but launch.cores names no cores; write launch.cores: [0-3, 4-7], one "
            "item for each rank of a host");
  EXPECT_EQ(with_launch("cores: [0]"),
            "run.yaml:9:17: launch.cores: needs launch.bind: list, but launch.bind is core; leave one of them out");
  EXPECT_EQ(with_launch("bind: list, cores: [0-1, 5-2]"),
            "run.yaml:9:35: launch.cores.1: is '5-2', must be 0, 0-3 or 0-3+8");
}

}  // namespace
}  // namespace convoy
