// Order and texts of the leaderboard.
#include "launch/farm/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

PipelineResult done(const std::string& name, const Json& metrics) {
  return {name, "done", 1, "", "pipelines/" + name, {{"steps", 20}, {"epochs", 1}, {"metrics", metrics}}};
}

Json metric(double last, double best, bool lower = false) {
  Json values = {{"last", last}, {"best", best}, {"best_step", 10}};
  if (lower) values["lower_is_better"] = true;
  return values;
}

std::vector<std::string> names(const Json& board) {
  std::vector<std::string> all;
  for (const Json& row : board["rows"]) all.push_back(row["pipeline"]);
  return all;
}

TEST(Leaderboard, SortsByTheFinalModelAndPutsFailuresLast) {
  PipelineResult failed = done("failed", {{"accuracy", metric(0.99, 0.99)}});
  failed.status = "failed";
  failed.cause = "memory";
  const std::vector<PipelineResult> results{failed, done("low", {{"accuracy", metric(0.8, 0.95)}}), done("other", {}),
                                            done("high", {{"accuracy", metric(0.9, 0.9)}})};
  const Json board = leaderboard(results, {"accuracy", "auto"});
  EXPECT_THAT(names(board), ElementsAre("high", "low", "other", "failed"));
  EXPECT_EQ(board["rows"][1]["place"], 2);
  EXPECT_TRUE(board["rows"][2]["place"].is_null());
  EXPECT_EQ(board["direction"], "maximize");
  EXPECT_THAT(names(leaderboard(results, {"accuracy", "minimize"})), ElementsAre("low", "high", "other", "failed"));
}

TEST(Leaderboard, TakesTheDirectionFromTheMetric) {
  const std::vector<PipelineResult> results{done("a", {{"perplexity", metric(9, 8, true)}}),
                                            done("b", {{"perplexity", metric(7, 7, true)}})};
  EXPECT_THAT(names(leaderboard(results, {"perplexity", "auto"})), ElementsAre("b", "a"));
}

TEST(Leaderboard, ChoosesTheMostCommonMetric) {
  const std::vector<PipelineResult> results{
      done("a", {{"loss", metric(1, 1, true)}, {"accuracy", metric(0.5, 0.5)}}),
      done("b", {{"loss", metric(2, 2, true)}, {"accuracy", metric(0.6, 0.6)}}),
  };
  EXPECT_EQ(leaderboard(results, {})["metric"], "accuracy");
  auto unlike = results;
  unlike.push_back(done("c", {{"loss", metric(0.1, 0.1, true)}, {"hr@10", metric(0.6, 0.6)}}));
  const Json board = leaderboard(unlike, {});
  EXPECT_EQ(board["metric"], "accuracy") << "losses of unlike models say nothing of each other";
  EXPECT_THAT(names(board), ElementsAre("b", "a", "c"));
  const std::vector<PipelineResult> losses{done("d", {{"loss", metric(2, 2, true)}}),
                                           done("e", {{"loss", metric(1, 1, true)}})};
  EXPECT_THAT(names(leaderboard(losses, {})), ElementsAre("e", "d"));
  EXPECT_TRUE(leaderboard({done("x", {})}, {})["metric"].is_null());
}

TEST(Leaderboard, TreatsNonNumbersAsUnknown) {
  Json diverged = metric(0, 0);
  diverged["last"] = "nan";
  const Json board =
      leaderboard({done("nan", {{"accuracy", diverged}}), done("ok", {{"accuracy", metric(0.1, 0.1)}})}, {});
  EXPECT_THAT(names(board), ElementsAre("ok", "nan"));
  EXPECT_TRUE(board["rows"][1]["value"].is_null());
}

TEST(Leaderboard, AcceptsMissingAndForeignSummaries) {
  PipelineResult never{"never", "cancelled", 0, "stopped", "pipelines/never", Json::object()};
  PipelineResult odd{"odd", "done", 1, "", "pipelines/odd", {{"metrics", 3}, {"steps", "many"}}};
  const Json board = leaderboard({never, odd}, {"accuracy", "auto"});
  EXPECT_THAT(names(board), ElementsAre("odd", "never"));
  EXPECT_THAT(leaderboard_table(board), HasSubstr("cancelled: stopped"));
}

TEST(Leaderboard, FormatsATableAndCsv) {
  PipelineResult failed{"b", "failed", 3, "exit 3, \"odd\"", "pipelines/b", Json::object()};
  const Json board = leaderboard(
      {failed, done("a", {{"accuracy", metric(0.875, 0.9)}, {"loss", metric(0.25, 0.2, true)}})}, {"accuracy", "auto"});
  EXPECT_EQ(leaderboard_table(board),
            "   pipeline  status                 accuracy  best  epochs  steps  time  rate  tries\n"
            "1  a         done                      0.875   0.9       1     20     -     -      1\n"
            "-  b         failed: exit 3, \"odd\"         -     -       -      -     -     -      3\n");
  EXPECT_EQ(
      leaderboard_csv(board),
      "place,pipeline,status,cause,attempts,epochs,steps,samples,parameters,train_seconds,samples_per_second,folder,"
      "accuracy,accuracy best,loss,loss best\r\n"
      "1,a,done,,1,1,20,,,,,pipelines/a,0.875,0.9,0.25,0.2\r\n"
      ",b,failed,\"exit 3, \"\"odd\"\"\",3,,,,,,,pipelines/b,,,,\r\n");
}

TEST(Leaderboard, HasColumnsForTheGrid) {
  std::vector<PipelineResult> results{done("a", {{"loss", metric(1, 1, true)}}), done("b", {})};
  results[0].grid = {{"model.hidden", {64, 32}}, {"loss", "mse"}, {"data.path", "a \"b\", c"}};
  const std::string csv = leaderboard_csv(leaderboard(results, {}));
  EXPECT_THAT(csv, HasSubstr(",grid.loss,"));
  EXPECT_THAT(csv, HasSubstr(",model.hidden,"));
  EXPECT_THAT(csv, HasSubstr("\"[64,32]\""));
  EXPECT_THAT(csv, HasSubstr("\"a \"\"b\"\", c\""));
}

}  // namespace
}  // namespace convoy
