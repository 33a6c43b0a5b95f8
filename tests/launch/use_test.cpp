// Commands that use trained runs, as far as they start nothing: the run that is named, its configuration, lists and
// comparisons of runs.
#include "launch/cli/use.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "core/files/files.h"
#include "core/files/run_files.h"
#include "core/rank_state/summary.h"
#include "launch/cli/commands.h"
#include "launch/farm/report/report.h"
#include "launch/report/listed_run.h"
#include "strategies/plans/catalogue.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class UseTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return temporary_ / name; }

  void leave(const std::string& name, const Json& config, const Json& metrics,
             const std::string& status = "done") const {
    fs::create_directories(at(name));
    write_summary(at(name), {{"status", status},
                             {"name", name},
                             {"strategy", "s"},
                             {"exit_code", 0},
                             {"steps", 40},
                             {"config", config},
                             {"metrics", metrics}});
  }
  void leave_checkpoint(const std::string& name, int64_t step, const Json& config, int64_t ranks = 2) const {
    const std::string path = at(name) + "/checkpoints/step-" + std::to_string(step);
    fs::create_directories(path);
    std::ofstream(path + "/manifest.json")
        << Json{{"format", 1}, {"step", step}, {"trainer", {{"world_size", ranks}}}, {"config", config}};
  }
  static Json metric(double last, double best, int64_t step, bool lower = false) {
    Json values{{"last", last}, {"best", best}, {"best_step", step}};
    if (lower) values["lower_is_better"] = true;
    return values;
  }
  static std::string failure(const std::function<void()>& act, Failure kind) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }
  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

// --- used_run ---

TEST_F(UseTest, FindsTheNewestCheckpointAndItsConfiguration) {
  leave("a", Json::object(), Json::object(), "stopped");
  leave_checkpoint("a", 20, {{"seed", 1}, {"model", Json::object()}});
  leave_checkpoint("a", 100, {{"seed", 2}, {"model", Json::object()}}, 3);
  const UsedRun newest = used_run(at("a"), "convoy evaluate");
  EXPECT_EQ(newest.step, 100);
  EXPECT_EQ(newest.config["seed"], 2);
  EXPECT_EQ(newest.world_size, 3);
  EXPECT_EQ(newest.path(), at("a/checkpoints/step-100"));
  ASSERT_EQ(newest.notes.size(), 1u);
  EXPECT_THAT(newest.notes.front(), HasSubstr("status stopped"));
  const UsedRun named = used_run(at("a@step-20@member1"), "convoy evaluate");
  EXPECT_EQ(named.step, 20);
  EXPECT_EQ(named.path(), at("a/checkpoints/step-20@member1"));
  EXPECT_EQ(used_run(at("a/checkpoints/step-20/"), "convoy evaluate").path(), at("a/checkpoints/step-20"));
}

TEST_F(UseTest, RefusesAFolderWithoutARun) {
  const auto refusal = [&](const std::string& name, Failure kind = Failure::command_line) {
    return failure([&] { used_run(at(name), "convoy evaluate"); }, kind);
  };
  EXPECT_THAT(refusal("none"), HasSubstr("does not exist"));
  fs::create_directories(at("other"));
  EXPECT_THAT(refusal("other"), HasSubstr("neither a run folder nor a checkpoint"));
  leave("young", Json::object(), Json::object(), "running");
  EXPECT_THAT(refusal("young", Failure::config), HasSubstr("its status is ended; train it again"))
      << "no process runs it";
  {
    const FolderLock lock(at("young"));
    EXPECT_THAT(refusal("young", Failure::config), HasSubstr("its status is running; wait"));
  }
  leave("without", Json::object(), Json::object());
  EXPECT_THAT(refusal("without", Failure::config), HasSubstr("train.checkpoint_every"));
  fs::create_directories(at("farm"));
  write_summary(at("farm"),
                {{"status", "done"}, {"pipelines", {{{"folder", "pipelines/x"}}, {{"folder", "pipelines/y"}}}}});
  const std::string farm = refusal("farm");
  EXPECT_THAT(farm, HasSubstr("is the folder of a farm"));
  EXPECT_THAT(farm, HasSubstr("farm/pipelines/x, "));
  leave_checkpoint("damaged", 5, Json::object());
  std::ofstream(at("damaged/checkpoints/step-5/manifest.json")) << "{";
  EXPECT_THAT(refusal("damaged", Failure::corrupt_data), HasSubstr("the checkpoint is damaged; there is no older one"));
  leave_checkpoint("damaged", 3, Json::object());
  EXPECT_THAT(refusal("damaged", Failure::corrupt_data), HasSubstr("name an older one: " + at("damaged@step-3")));
  EXPECT_THAT(refusal("farm@best"), HasSubstr("is the folder of a farm"));
  EXPECT_THAT(refusal("none@best"), HasSubstr("/none does not exist"));
  EXPECT_THAT(refusal("damaged@", Failure::config), HasSubstr("only @best, @step-N and @memberN have a meaning"));
  leave_checkpoint("program", 5, {{"program", {"./mine"}}});
  EXPECT_THAT(refusal("program", Failure::config), HasSubstr("was trained by a program (key `program`)"));
}

TEST_F(UseTest, AnotherVersionIsANote) {
  leave("old", Json::object(), Json::object());
  Json summary = read_summary(at("old"));
  summary["version"] = "0.0.1";
  write_summary(at("old"), summary);
  leave_checkpoint("old", 5, {{"model", Json::object()}});
  ASSERT_EQ(used_run(at("old"), "convoy evaluate").notes.size(), 1u);
  EXPECT_THAT(used_run(at("old"), "convoy evaluate").notes.front(), HasSubstr("convoy 0.0.1 trained this run"));
}

TEST_F(UseTest, RemovesKeysOfTrainingFromTheConfiguration) {
  UsedRun run;
  run.config = {{"launch", {{"ranks", 8}}},
                {"backend", "mpi"},
                {"model", {{"name", "mlp"}, {"init_from", {{"path", "gone"}}}}},
                {"data", {{"name", "table"}, {"path", "rows.csv"}}},
                {"train", {{"epochs", 3}, {"early_stop", {{"metric", "loss"}}}, {"keep_best", {{"metric", "loss"}}}}},
                {"strategy", {{"name", "some"}, {"early_stop", {{"patience", 3}}}, {"micro_batches", 4}}}};
  const Json by_strategy = configuration_to_use(run, true);
  EXPECT_FALSE(by_strategy.contains("launch"));
  EXPECT_EQ(by_strategy["backend"], "auto");
  EXPECT_EQ(by_strategy["model"], (Json{{"name", "mlp"}}));
  EXPECT_EQ(by_strategy["train"], (Json{{"epochs", 3}}));
  EXPECT_EQ(by_strategy["strategy"], (Json{{"name", "some"}, {"micro_batches", 4}}));
  EXPECT_EQ(by_strategy["data"]["changed"], "allow");
  run.member = 1;
  EXPECT_EQ(configuration_to_use(run, true)["strategy"], (Json{{"name", reference_strategy().name}}));
  EXPECT_EQ(configuration_to_use(run, false)["strategy"], (Json{{"name", equal_ranks_strategy().name}}));
}

// --- convoy runs ---

TEST_F(UseTest, ListsRunsNewestFirst) {
  leave("old", Json::object(), {{"loss", metric(0.5, 0.4, 20, true)}, {"accuracy", metric(0.8, 0.9, 30)}});
  leave("new", {{"train", {{"keep_best", {{"metric", "loss"}}}}}},
        {{"loss", metric(0.3, 0.25, 10, true)}, {"accuracy", metric(0.8, 0.9, 30)}}, "running");
  fs::create_directories(at("no-run"));
  fs::last_write_time(at("old/summary.json"), fs::file_time_type::clock::now() - std::chrono::hours(3));
  std::ostringstream out;
  EXPECT_EQ(runs_command({folder_, "", false}, out), 0);
  const std::string text = out.str();
  EXPECT_LT(text.find("/new"), text.find("/old"));
  EXPECT_THAT(text, HasSubstr("ended")) << "no process holds its lock";
  EXPECT_THAT(text, Not(HasSubstr("no-run")));
  std::ostringstream as_json;
  runs_command({folder_, "", true}, as_json);
  const Json list = Json::parse(as_json.str());
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["metric"], "loss") << "that of train.keep_best";
  EXPECT_EQ(list[0]["best"], 0.25);
  EXPECT_EQ(list[1]["metric"], "accuracy") << "a loss only if there is no other";
  EXPECT_EQ(list[1]["best_step"], 30);
  EXPECT_NEAR(list[1]["age_seconds"].get<double>(), 3 * 3600, 60);
  failure([&] { runs_command({at("none"), "", false}, out); }, Failure::command_line);
}

TEST_F(UseTest, ListsAFarmWithTheBestValueOfItsRuns) {
  leave("farm/pipelines/a", Json::object(), {{"loss", metric(0.5, 0.4, 20, true)}, {"accuracy", metric(0.8, 0.9, 30)}});
  leave("farm/pipelines/b", Json::object(), {{"loss", metric(0.5, 0.3, 40, true)}, {"accuracy", metric(0.8, 0.8, 10)}});
  const auto listed = [&](const Json& strategy, const std::string& wanted) {
    write_summary(at("farm"), {{"status", "done"},
                               {"config", {{"strategy", strategy}}},
                               {"pipelines", {{{"folder", "pipelines/a"}}, {{"folder", "pipelines/b"}}}}});
    std::ostringstream out;
    runs_command({folder_, wanted, true}, out);
    for (const Json& run : Json::parse(out.str()))
      if (run["strategy"] == "farm") return str(run["metric"], " ", run["best"], " ", run["best_step"]);
    return std::string("no farm");
  };
  EXPECT_EQ(listed(Json::object(), ""), "\"accuracy\" 0.9 30.0");
  EXPECT_EQ(listed({{"metric", "loss"}}, ""), "\"loss\" 0.3 40.0");
  EXPECT_EQ(listed({{"metric", "loss"}}, "accuracy"), "\"accuracy\" 0.9 30.0");
  EXPECT_EQ(listed({{"direction", "minimize"}}, "accuracy"), "\"accuracy\" 0.8 10.0");
  EXPECT_EQ(listed(Json::object(), "none"), "null null null");
}

// A killed run has no final summary. The direction of a metric is recorded: it does not follow from the name.
TEST_F(UseTest, TakesTheBestRecordedValueByItsRecordedDirection) {
  leave("killed", Json::object(), Json::object(), "running");
  const auto record = [](int step, double gini, double perplexity, bool with_direction) {
    Json json{{"kind", "evaluate"},
              {"step", step},
              {"metrics", {{"gini", gini}, {"perplexity", perplexity}, {"loss", gini}}}};
    if (with_direction) json["lower_is_better"] = {"gini", "perplexity"};
    return json.dump() + "\n";
  };
  std::ofstream(at("killed/metrics.jsonl"))
      << record(1, 0.5, 9, true) << record(2, 0.25, 7, true) << record(3, 0.75, 8, true);
  const std::optional<ListedRun> run = listed_run(at("killed"));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->status, "ended");
  EXPECT_EQ(value_of_metric(*run, "gini", "best"), 0.25);
  EXPECT_EQ(value_of_metric(*run, "perplexity", "best_step"), 2);
  EXPECT_EQ(value_of_metric(*run, "loss", "best"), 0.75) << "recorded as one that is better if higher";
  std::ofstream(at("killed/metrics.jsonl")) << record(1, 0.5, 9, false) << record(2, 0.25, 7, false);
  EXPECT_EQ(value_of_metric(*listed_run(at("killed")), "loss", "best"), 0.25) << "of an earlier version: by its name";
  EXPECT_EQ(value_of_metric(*listed_run(at("killed")), "gini", "best"), 0.5);
}

// --- convoy compare ---

TEST(SpreadTest, DifferencesAgainstTheSpreadOverSeeds) {
  const SpreadTest clear = spread_test({1.0, 1.1, 0.9}, {2.0, 2.1, 1.9});
  EXPECT_NEAR(clear.difference, 1, 1e-12);
  EXPECT_NEAR(clear.deviation, 0.1, 1e-12);
  EXPECT_NEAR(clear.limit, 2.776 * 0.1 * std::sqrt(2.0 / 3), 1e-9);
  EXPECT_TRUE(clear.exceeds());
  EXPECT_FALSE(spread_test({1.0, 1.2}, {1.05, 1.3}).exceeds());
  // One run against several: their spread counts for it too.
  EXPECT_NEAR(spread_test({1.0, 1.1, 0.9}, {2.0}).limit, 4.303 * 0.1 * std::sqrt(1 + 1.0 / 3), 1e-9);
  EXPECT_TRUE(std::isnan(spread_test({1.0}, {2.0}).limit));
  EXPECT_FALSE(spread_test({1.0}, {2.0}).exceeds()) << "nothing is known about the spread";
  EXPECT_FALSE(std::isnan(spread_test({1.0}, {2.0}, {{1, 2, 3}}).limit));
  EXPECT_NEAR(student_quantile(40), 2.021, 0.003);
}

class CompareTest : public UseTest {
 protected:
  static Json config(uint64_t seed, double rate) {
    return {{"name", "n"}, {"seed", seed}, {"optimizer", {{"name", "adam"}, {"lr", rate}}}};
  }
  Json compare(const std::vector<std::string>& names, bool best = false) const {
    std::vector<std::string> folders;
    for (const std::string& name : names) folders.push_back(at(name));
    std::ostringstream out;
    EXPECT_EQ(compare_command({folders, best, true}, out), 0);
    return Json::parse(out.str());
  }
};

TEST_F(CompareTest, FindsSeedsOfTheSameFolder) {
  const double low[] = {0.80, 0.82, 0.81}, high[] = {0.90, 0.91, 0.92};
  for (int seed = 0; seed < 3; ++seed) {
    leave("low" + std::to_string(seed), config(seed, 0.1), {{"accuracy", metric(low[seed], 0.95, 10)}});
    leave("high" + std::to_string(seed), config(seed, 0.01), {{"accuracy", metric(high[seed], 0.95, 10)}});
  }
  const Json result = compare({"low0", "high0"});
  EXPECT_EQ(result["keys"], (Json{{"optimizer.lr", {0.1, 0.01}}}));
  EXPECT_EQ(result["groups"][0].size(), 3u);
  const Json& second = result["metrics"]["accuracy"][1];
  EXPECT_NEAR(second["mean"].get<double>(), 0.91, 1e-9);
  EXPECT_NEAR(second["difference"].get<double>(), 0.1, 1e-9);
  EXPECT_TRUE(second["exceeds_spread"].get<bool>());
  EXPECT_FALSE(compare({"low0", "high0"}, true)["metrics"]["accuracy"][1]["exceeds_spread"].get<bool>());
}

TEST_F(CompareTest, WithoutSeedsTheSpreadIsUnknown) {
  leave("a", config(1, 0.1), {{"loss", metric(0.5, 0.5, 1, true)}});
  leave("b", config(1, 0.2), {{"loss", metric(0.4, 0.4, 1, true)}, {"accuracy", metric(1, 1, 1)}});
  const Json result = compare({"a", "b"});
  EXPECT_TRUE(result["metrics"]["loss"][1]["exceeds_spread"].is_null());
  EXPECT_TRUE(result["metrics"]["accuracy"][0]["mean"].is_null());
  std::ostringstream out;
  compare_command({{at("a"), at("b")}, false, false}, out);
  EXPECT_THAT(out.str(), HasSubstr("spread unknown"));
  EXPECT_THAT(out.str(), HasSubstr("--set seed=2"));
}

TEST_F(CompareTest, RunsOfOneConfigurationShowTheSpread) {
  leave("a", config(1, 0.1), {{"loss", metric(0.5, 0.5, 1, true)}});
  leave("b", config(2, 0.1), {{"loss", metric(0.7, 0.7, 1, true)}});
  std::ostringstream out;
  compare_command({{at("a"), at("b")}, false, false}, out);
  EXPECT_THAT(out.str(), HasSubstr("differ in their seeds only"));
  EXPECT_THAT(out.str(), HasSubstr("0.6 ")) << "their mean";
}

TEST_F(CompareTest, AnUnfinishedRunIsNoSeedOfOthers) {
  for (int seed = 0; seed < 2; ++seed)
    leave("a" + std::to_string(seed), config(seed, 0.1), {{"loss", metric(0.5 + 0.1 * seed, 0.5, 1, true)}});
  leave("b", config(0, 0.2), {{"loss", metric(0.4, 0.4, 1, true)}});
  leave("killed", config(7, 0.1), {{"loss", metric(9, 9, 1, true)}}, "running");
  const Json result = compare({"a0", "killed", "b"});
  EXPECT_EQ(result["groups"], (Json{{at("a0"), at("a1")}, {at("killed")}, {at("b")}}));
  EXPECT_EQ(result["status"], (Json{"done", "ended", "done"}));
  EXPECT_NEAR(result["metrics"]["loss"][0]["mean"].get<double>(), 0.55, 1e-9);
  std::ostringstream out;
  compare_command({{at("killed"), at("b")}, false, false}, out);
  EXPECT_THAT(out.str(), HasSubstr("killed has status ended after step 40: its values are those so far"));
}

TEST_F(CompareTest, RefusesOneRunAndNone) {
  leave("a", config(1, 0.1), Json::object());
  std::ostringstream out;
  EXPECT_THAT(failure(
                  [&] {
                    compare_command({{at("a")}, false, false}, out);
                  },
                  Failure::command_line),
              HasSubstr("at least two"));
  EXPECT_THAT(failure(
                  [&] {
                    compare_command({{at("a"), at("x")}, false, false}, out);
                  },
                  Failure::command_line),
              HasSubstr("holds no run"));
}

}  // namespace
}  // namespace convoy
