// `convoy verify` without running anything: options of the two runs, and the result from their differences.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>

#include "core/config/reader.h"
#include "launch/cli/commands.h"
#include "launch/diagnose/reports.h"
#include "launch/prepare/describe.h"
#include "tests/support/errors.h"

namespace convoy {
namespace {

RunConfig read(const std::vector<std::string>& overrides) {
  const std::string path = ::testing::TempDir() + "verify.yaml";
  std::ofstream(path) << "name: test\nmodel: {name: mlp, hidden: [8]}\ndata: {name: synthetic}\n"
                         "optimizer: {name: adam}\ntrain: {batch: {global: 12}}\nstrategy: {name: ddp}\n";
  RunConfig config = read_run_tree(read_yaml_file(path, overrides), all_catalogues());
  std::remove(path.c_str());
  return config;
}

RunConfig read(const std::vector<std::string>& own, const std::vector<std::string>& more) {
  std::vector<std::string> all = own;
  all.insert(all.end(), more.begin(), more.end());
  return read(all);
}

TEST(Verify, BothRunsAreExactAndBounded) {
  std::vector<std::string> notes;
  VerifyArguments arguments;
  arguments.steps = 7;
  const std::vector<std::string> own{"randomness=fast", "precision=bf16"};
  const RunConfig config = read(own, common_overrides(read(own), arguments, notes));
  EXPECT_EQ(config.precision, "fp64");
  EXPECT_EQ(config.randomness, "exact");
  EXPECT_EQ(config.train.max_steps, 7);
  EXPECT_EQ(config.train.epochs, 0);  // as many as the steps take
  EXPECT_EQ(config.train.checkpoint_every.unit, Interval::Unit::never);
  EXPECT_EQ(config.train.evaluate_every.unit, Interval::Unit::never);
  EXPECT_EQ(config.train.resume, "never");
  EXPECT_EQ(config.optimizer.options.real("eps"), 1e-5);
  const std::string all = join(notes, "; ");
  EXPECT_TRUE(has(all, "fp64 instead of bf16")) << all;
  EXPECT_TRUE(has(all, "exact instead of fast")) << all;
  EXPECT_TRUE(has(all, "optimizer.eps raised from 1e-08 to 1e-05")) << all;
}

TEST(Verify, RaisesOnlyASmallEps) {
  for (const std::string own : {"optimizer.eps=1.0e-3", "optimizer={name: sgd}"}) {
    std::vector<std::string> notes;
    const RunConfig before = read({own});
    const VerifyArguments arguments;
    const RunConfig after = read({own}, common_overrides(before, arguments, notes));
    EXPECT_EQ(after.optimizer.options.json(), before.optimizer.options.json());
    EXPECT_FALSE(has(join(notes, "; "), "eps")) << own;
  }
}

// The reference has the same accumulation and rows per step, and no keys that only the configured strategy has.
TEST(Verify, TheReferenceRunsTheSameSteps) {
  const std::vector<std::string> own{"strategy.sync.every=3", "strategy.bucket_cap_mb=1", "launch.ranks=4",
                                     "backend=gloo", "train.batch={per_rank: 5}"};
  const RunConfig config = read(own, reference_overrides(read(own), 4));
  EXPECT_NE(config.strategy.name, "ddp");
  EXPECT_EQ(config.strategy.options.section("sync").integer("every"), 3);
  EXPECT_EQ(config.train.batch.rows, 20);
  EXPECT_FALSE(config.train.batch.per_rank);
  EXPECT_EQ(config.launch.ranks, 0);
  EXPECT_EQ(config.backend, "auto");
}

TEST(Verify, TheReferenceNeverRecomputes) {
  const std::vector<std::string> own{"strategy.recompute=blocks"};
  const RunConfig config = read(own);
  ASSERT_EQ(config.strategy.options.at("recompute"), "blocks");
  EXPECT_EQ(read(own, reference_overrides(config, 2)).strategy.options.at("recompute"), "none");
}

TEST(Verify, RefusesOptionsThatChangeResultsAtTheirKey) {
  EXPECT_NO_THROW(check_comparable(read({})));
  RunConfig config = read({});
  Json strategy = config.strategy.options.json();
  strategy["sync"]["what"] = "parameters";
  config.strategy.options = Options(strategy, {{"sync.what", {"run.yaml", 9, 4}}}, "strategy");
  try {
    check_comparable(config);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_EQ(error.key(), "strategy.sync.what");
    EXPECT_TRUE(has(error.what(), "run.yaml:9:4: strategy.sync.what: is parameters")) << error.what();
  }
}

TEST(Verify, RefusesAGroupThatTrainsLocallyAtItsKey) {
  const RunConfig config = read({"strategy.sync.groups=[{match: bias}, {match: weight, what: diloco}]"});
  try {
    check_comparable(config);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "strategy.sync.groups.1.what");
  }
}

TensorDifference off(const std::string& kind, const std::string& name, double relative) {
  TensorDifference difference;
  difference.kind = kind;
  difference.name = name;
  difference.shape = {3, 4};
  difference.absolute = difference.relative = relative;
  difference.same_bytes = relative == 0;
  return difference;
}

std::vector<StepDifferences> steps(double weight, double gradient, double buffer = 0, double initial = 0) {
  const auto step = [&](int64_t number, double w, double g, double b) {
    StepDifferences all{number, {off("parameter", "a.weight", w), off("buffer", "a.mean", b)}};
    if (number > 0) {
      all.tensors.push_back(off("gradient", "a.weight", g));
      all.tensors.push_back(off("exp_avg", "a.weight", g / 10));
    }
    return all;
  };
  return {step(0, initial, 0, 0), step(1, weight / 10, gradient, buffer), step(2, weight, gradient, buffer)};
}

TEST(Verify, RoundingAgreesAndTheLargestDifferenceIsNamed) {
  const VerifyResult result = verify_result(steps(3e-16, 4e-15), 1e-9, "one");
  EXPECT_TRUE(result.agree);
  EXPECT_TRUE(has(result.text, "agree: after each of 2 updates")) << result.text;
  EXPECT_TRUE(has(result.text, "the gradient of a.weight by 4.0e-15, after step 1")) << result.text;
  EXPECT_TRUE(has(result.table, "a.weight  [3, 4]    3.0e-16   4.0e-15")) << result.table;
  EXPECT_TRUE(has(result.table, "never")) << result.table;
}

TEST(Verify, TheFirstWrongStepAndTensorAreNamed) {
  const VerifyResult late = verify_result(steps(5e-9, 0), 1e-9, "one");  // 5e-10 after the first step
  EXPECT_FALSE(late.agree);
  EXPECT_TRUE(has(late.text, "differ: first after step 2: the parameter of a.weight by 5.0e-09")) << late.text;
  EXPECT_TRUE(has(late.table, "step 2")) << late.table;
  const VerifyResult early = verify_result(steps(5e-9, 0.25), 1e-9, "one");
  EXPECT_TRUE(has(early.text, "first after step 1: the gradient of a.weight by 2.5e-01")) << early.text;
  EXPECT_TRUE(verify_result(steps(5e-9, 0.25), 0.3, "one").agree);
}

TEST(Verify, InitialValuesMustBeEqualBitForBit) {
  const VerifyResult result = verify_result(steps(0, 0, 0, 1e-17), 1e-9, "one");
  EXPECT_FALSE(result.agree);
  EXPECT_TRUE(has(result.text, "initial values are not equal bit for bit: the parameter of a.weight")) << result.text;
  EXPECT_TRUE(has(result.table, "step 0")) << result.table;
}

TEST(Verify, BuffersAreShownAndNotCompared) {
  const VerifyResult result = verify_result(steps(0, 0, 0.5), 1e-9, "one");
  EXPECT_TRUE(result.agree);
  EXPECT_TRUE(has(result.table, "5.0e-01")) << result.table;
}

TEST(Verify, AMissingOrNonFiniteTensorDiffers) {
  auto missing = steps(0, 0);  // after one step; the other has it
  missing[1].tensors[2].fault = "is missing, but the reference has it";
  missing[1].tensors[2].relative = std::numeric_limits<double>::infinity();
  const VerifyResult result = verify_result(missing, 1e-9, "one");
  EXPECT_FALSE(result.agree);
  EXPECT_TRUE(has(result.text, "the gradient of a.weight is missing")) << result.text;
  EXPECT_TRUE(has(result.table, "inf")) << result.table;
  EXPECT_FALSE(verify_result(steps(std::numeric_limits<double>::quiet_NaN(), 0), 1e-9, "one").agree);
}

TEST(Verify, NoUpdateProvesNothing) {
  EXPECT_FALSE(verify_result({}, 1e-9, "one").agree);
  EXPECT_FALSE(verify_result({steps(0, 0).front()}, 1e-9, "one").agree);
}

TEST(Verify, AnUpdateInOnlyOneRunDiffers) {
  auto more = steps(0, 0);
  more.push_back(update_in_one_run(4, "is as before"));
  const VerifyResult result = verify_result(more, 1e-9, "one");
  EXPECT_FALSE(result.agree);
  EXPECT_TRUE(has(result.text, "first after step 4: the counter of updates is as before")) << result.text;
  EXPECT_TRUE(has(result.table, "updates")) << result.table;
}

TEST(Verify, NotesAStrategyWithoutGradients) {
  auto none = steps(0, 0);
  for (StepDifferences& step : none) {
    for (TensorDifference& tensor : step.tensors) {
      if (tensor.kind != "gradient") continue;
      tensor.fault = "is missing, but the reference has it";
      tensor.relative = std::numeric_limits<double>::infinity();
    }
  }
  const VerifyResult result = verify_result(none, 1e-9, "one");
  EXPECT_TRUE(result.agree);
  EXPECT_TRUE(has(result.text, "gradients are not shown")) << result.text;
}

TEST(Verify, NamesLocalBatchNormAsTheReason) {
  TensorDifference statistics;
  statistics.name = "stem.norm.running_mean";
  statistics.kind = "buffer";
  StepDifferences step;
  step.tensors = {statistics};
  const Options local(Json{{"batch_norm", "local"}}), sync(Json{{"batch_norm", "sync"}});
  const std::string text = batch_norm_text(local, 2, {step});
  EXPECT_TRUE(has(text, "(strategy.batch_norm: local)") && has(text, "--set strategy.batch_norm=sync")) << text;
  EXPECT_EQ(batch_norm_text(sync, 2, {step}), "");
  EXPECT_EQ(batch_norm_text(local, 1, {step}), "");
  step.tensors.front().name = "stem.weight";
  EXPECT_EQ(batch_norm_text(local, 2, {step}), "");
}

}  // namespace
}  // namespace convoy
