// The key `program`: keys of a run with a program, its default name, and keys that it excludes.
#include "core/config/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/node.h"
#include "tests/support/config_text.h"

namespace convoy {
namespace {

using testing::config_error;
using ::testing::HasSubstr;
using testing::read_config;
using testing::valid_config;

TEST(ConfigProgram, AcceptsTheKeysOfAProgram) {
  const RunConfig config = read_config("program: [bin/mine, --epochs, 3, 007]\nseed: 4\ntrain: {keep_last: 5}\n");
  EXPECT_EQ(config.program, (std::vector<std::string>{"bin/mine", "--epochs", "3", "007"}));
  EXPECT_EQ(config.name, "mine");
  EXPECT_EQ(config.seed, 4u);
  EXPECT_EQ(config.train.keep_last, 5);
  EXPECT_EQ(config.train.checkpoint_every.unit, Interval::Unit::epochs);
  EXPECT_FALSE(config.resolved.contains("model"));
  EXPECT_FALSE(config.resolved["train"].contains("batch"));
}

TEST(ConfigProgram, ResolvedTextReadsBack) {
  const RunConfig config = read_config("program: [./mine, 'a b', '']\nname: own\nlaunch: {ranks: 2}\n");
  const RunConfig again = read_config(to_yaml(config.resolved));
  EXPECT_EQ(without_locations(again.resolved), without_locations(config.resolved));
  EXPECT_EQ(RunConfig::from_resolved(config.resolved).program, config.program);
}

TEST(ConfigProgram, RefusesTrainingKeys) {
  const std::string both = config_error("program: [./mine]\nmodel: {name: net}\ntrain: {epochs: 3, keep_last: 1}\n");
  EXPECT_THAT(both, HasSubstr("run.yaml:2:1: model: does not apply to a run with a program"));
  EXPECT_THAT(both, HasSubstr("run.yaml:3:9: train.epochs: does not apply"));
  EXPECT_THAT(both, HasSubstr("2 mistakes"));
  EXPECT_THAT(config_error(valid_config, {"program=[./mine]"}), HasSubstr("optimizer: does not apply"));
}

TEST(ConfigProgram, RefusesAPathThatIsNoProgram) {
  EXPECT_THAT(config_error("program: []\n"), HasSubstr("program: is empty"));
  EXPECT_THAT(config_error("program: ['']\n"), HasSubstr("program.0: is empty"));
  EXPECT_THAT(config_error("program: ./mine\n"), HasSubstr("run.yaml:1:10: program: "));
  EXPECT_THAT(config_error("program: [./mine]\nsed: 3\n"), HasSubstr("did you mean seed"));
  EXPECT_THAT(config_error("program: [./mine]\ntrain: {kep_last: 3}\n"), HasSubstr("did you mean keep_last"));
}

TEST(ConfigProgram, NullMeansNone) {
  EXPECT_EQ(without_locations(read_config(std::string(valid_config) + "program: ~\n").resolved),
            without_locations(read_config(valid_config).resolved));
}

TEST(ConfigProgram, NamesTheRunAfterTheProgramFile) {
  const auto name_of = [](const std::string& program) {
    return read_run_tree(program_tree({program}, {}, {"command line", 0, 0}), {}).name;
  };
  EXPECT_EQ(name_of("/opt/my tool"), "my_tool");
  EXPECT_EQ(name_of("./.hidden"), "_hidden");
  EXPECT_EQ(name_of("bin/"), "program");
  EXPECT_EQ(name_of("x/" + std::string(300, 'a')).size(), 100u);
}

TEST(ConfigProgram, AppliesOverridesToTheCommandLine) {
  const Node tree = program_tree({"./mine", "--x"}, {"launch.ranks=3", "name=other"}, {"command line", 0, 0});
  const RunConfig config = read_run_tree(tree, {});
  EXPECT_EQ(config.launch.ranks, 3);
  EXPECT_EQ(config.name, "other");
}

}  // namespace
}  // namespace convoy
