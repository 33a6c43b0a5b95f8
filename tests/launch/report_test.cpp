#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/files/files.h"
#include "launch/report/report.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;

constexpr double nan_of_report = std::numeric_limits<double>::quiet_NaN();

Curve noisy_curve(size_t points) {
  Curve curve;
  for (size_t i = 0; i < points; ++i) curve.add(double(i), std::sin(double(i) * 0.37) + double(i % 7));
  return curve;
}

// A run folder with this summary, on top of the usual keys.
std::string write_run(const TemporaryFolder& folder, const std::string& name, const Json& more,
                      const std::string& metrics = "") {
  Json summary{{"status", "done"},
               {"name", name},
               {"strategy", "ddp"},
               {"world_size", 2},
               {"steps", 100},
               {"samples", 6400},
               {"train_seconds", 12.5},
               {"samples_per_second", 512},
               {"metrics", {{"accuracy", {{"last", 0.9}, {"best", 0.95}, {"best_step", 80}}}}},
               {"config", {{"model", {{"name", "mlp"}}}, {"data", {{"name", "digits"}}}, {"seed", 1}}}};
  summary.update(more);
  const std::string path = folder.path() + "/" + name;
  std::filesystem::create_directories(path);
  std::ofstream(path + "/summary.json") << summary.dump();
  std::ofstream(path + "/metrics.jsonl") << metrics;
  return path;
}

TEST(Report, DownsamplingKeepsEndsAndPeaks) {
  Curve curve = noisy_curve(10000);
  curve.y[4321] = 1000;
  const Curve few = downsampled(curve, 300);
  EXPECT_EQ(few.x.size(), 300u);
  EXPECT_EQ(few.x.front(), 0);
  EXPECT_EQ(few.x.back(), 9999);
  EXPECT_EQ(*std::max_element(few.y.begin(), few.y.end()), 1000);
  EXPECT_TRUE(std::is_sorted(few.x.begin(), few.x.end()));
}

TEST(Report, DownsamplingKeepsShortCurvesAndShortensLevelOnes) {
  EXPECT_EQ(downsampled(noisy_curve(50), 100).y, noisy_curve(50).y);
  Curve level;
  for (int i = 0; i < 1000; ++i) level.add(i, 0.1);
  EXPECT_THAT(downsampled(level, 100).x, ElementsAre(0, 999));
}

TEST(Report, ValuesThatAreNotFiniteBecomeGaps) {
  Curve curve;
  const double values[] = {1, 2, nan_of_report, std::numeric_limits<double>::infinity(), 5};
  for (int i = 0; i < 5; ++i) curve.add(i, values[i]);
  EXPECT_EQ(to_json(curve, 100).dump(), R"({"n":5,"d":[0,1,1,2],"y":[1.0,2.0,null,5.0],"bad":2})");
}

TEST(Report, RepeatedStepReplacesTheEarlierOne) {
  Curve curve;
  for (const double step : {1, 2, 3, 4}) curve.add(step, step);
  curve.add(3, 30);
  EXPECT_THAT(curve.x, ElementsAre(1, 2, 3));
  EXPECT_THAT(curve.y, ElementsAre(1, 2, 30));
}

TEST(Report, ReadsRecordsAndSkipsDamagedLines) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path)
      << R"({"kind":"train","step":1,"seconds":0.5,"samples_per_second":20,"gradient_norm":2,"metrics":{"loss":"nan"}})"
      << "\nnonsense\n"
      << R"({"kind":"evaluate","step":2,"seconds":1,"metrics":{"loss":0.5},"members":{"loss":[0.4,0.6]}})"
      << "\n"
      << R"({"kind":"train","step":3,"met)";
  const RecordedRun run = read_records(path);
  EXPECT_EQ(run.damaged, 1);
  EXPECT_TRUE(std::isnan(find_curve(run.training, "loss")->y.at(0)));
  EXPECT_THAT(find_curve(run.training, "gradient_norm")->y, ElementsAre(2));
  EXPECT_THAT(find_curve(run.evaluation, "loss")->y, ElementsAre(0.5));
  ASSERT_EQ(run.members.size(), 1u);
  EXPECT_THAT(run.members[0].second.at(1).y, ElementsAre(0.6));
  EXPECT_DOUBLE_EQ(run.samples_per_step, 10);
  EXPECT_TRUE(read_records(folder.path() + "/none").training.empty());
}

TEST(Report, ThroughputIsOfIntervals) {
  Curve seconds;
  for (const auto& [step, time] : {std::pair{10, 1}, {20, 2}, {30, 12}}) seconds.add(step, time);
  EXPECT_THAT(throughput(seconds, 2, 100).y, ElementsAre(20, 2));
}

TEST(Report, ThreeSentencesAboutOneRun) {
  const TemporaryFolder folder;
  const std::string run = write_run(folder, "digits-run", {{"parameters", 12500}},
                                    R"({"kind":"train","step":1,"seconds":1,"metrics":{"loss":2.5}})"
                                    "\n"
                                    R"({"kind":"train","step":100,"seconds":12,"metrics":{"loss":0.25}})"
                                    "\n");
  EXPECT_THAT(
      report_data({run})["sentences"],
      ElementsAre(
          "digits-run trained mlp on digits (12,500 parameters) by ddp on 2 ranks: 100 steps and 6,400 samples in "
          "12 s.",
          "Its best accuracy on held-out rows is 0.95, after step 80, and the last is 0.9; the training loss fell "
          "from 2.5 to 0.25.",
          "It trained 512 samples per second."));
}

TEST(Report, ARunningJobIsAsFarAsItsNewestRecord) {
  ReportedRun run;
  run.records.seconds.add(100, 1);
  run.records.seconds.add(4000, 40);
  run.records.samples_per_step = 8;
  const TemporaryFolder folder;
  run.listed.folder = folder.path();
  run.listed.status = "running";
  run.listed.step = 7;
  run.listed.config = run.summary = Json::object();
  std::ofstream(folder / "progress.json")
      << R"({"step": 7, "steps": 6000, "samples_per_second": 1, "remaining_seconds": 999})";
  const Json json = to_json(run, "a", 100);
  EXPECT_EQ(json["step"], 4000);
  EXPECT_EQ(json["progress"]["samples_per_second"], 800);
  EXPECT_EQ(json["progress"]["remaining_seconds"], 20);
  std::ofstream(folder / "progress.json") << R"({"step": 5000, "steps": 6000, "remaining_seconds": 10})";
  EXPECT_EQ(to_json(run, "a", 100)["progress"]["remaining_seconds"], 10);
}

TEST(Report, SentencesNameFailuresAndAdvice) {
  const TemporaryFolder folder;
  const Json failure{{"rank", 1}, {"step", 7}, {"cause", "signal"}, {"message", "rank 1 was killed.\nmore"}};
  const std::string failed = write_run(folder, "a", {{"status", "failed"}, {"failure", failure}});
  EXPECT_EQ(report_data({failed})["sentences"][2], "It failed on rank 1 at step 7: rank 1 was killed.");
  const std::string good = write_run(
      folder, "b", {{"breakdown", {{"advice", "half of the time waits for data; try data.prefetch=thread"}}}});
  EXPECT_EQ(report_data({good})["sentences"][2], "half of the time waits for data; try data.prefetch=thread.");
  const Json stop{{"attempt", 0}, {"failure", {{"cause", "stopped"}}}},
      crash{{"attempt", 1}, {"failure", {{"cause", "signal"}}}};
  const std::string again =
      write_run(folder, "c", {{"attempts", Json::array({stop, crash})}, {"breakdown", {{"advice", "41 % waits"}}}});
  EXPECT_EQ(report_data({again})["sentences"][2], "It restarted once after a failure; 41 % waits.");
  EXPECT_THAT(report_data({again, failed})["sentences"].dump(), Not(HasSubstr("C continued")));
  const std::string advised = write_run(folder, "f", Json::object());
  EXPECT_EQ(report_data({again, advised})["sentences"][2], "c continued after a restart; c: 41 % waits.")
      << "names are not changed";
  const Json lost{{"left", {1}}, {"why", "rank 1 was killed"}}, new_rank{{"joined", {3}}, {"why", "rank 3 joins"}};
  const std::string changed = write_run(folder, "d", {{"membership", Json::array({lost, lost, new_rank})}});
  EXPECT_THAT(report_data({changed})["sentences"][2].get<std::string>(),
              HasSubstr("it continued without 2 lost ranks and gained a new rank"));
  const std::string gone = write_run(folder, "e", {{"status", "running"}});
  EXPECT_EQ(report_data({failed, gone})["sentences"][2],
            "1 run has failed: a at step 7 (rank 1 was killed); e ended without a result: its convoy is gone, and the "
            "same command resumes it.");
  const Json both = report_data({failed, good})["sentences"];
  EXPECT_THAT(both[0].get<std::string>(), HasSubstr("of the runs, 1 is done and 1 failed"));
  EXPECT_EQ(both[2], "1 run has failed: a at step 7 (rank 1 was killed).");
}

// Root may read every file, but follows no link to itself.
void hide(const std::string& file) {
  std::filesystem::remove(file);
  std::filesystem::create_symlink(file, file);
}

// A pipeline of the farm below with this value so far, or at its end.
void write_pipeline(const TemporaryFolder& folder, const std::string& name, double value, const Json& more) {
  Json summary{{"steps", nullptr}, {"metrics", Json::object()}};
  summary.update(more);
  write_run(folder, "farm/pipelines/" + name, summary,
            str(R"({"kind":"evaluate","step":9,"metrics":{"accuracy":)", value, "}}\n"));
}

TEST(Report, AFarmThatWasKilledHasTheResultsSoFar) {
  const TemporaryFolder folder;
  const Json stop{{"cause", "stopped"}, {"message", "paused after step 9"}};
  write_pipeline(folder, "running", 0.416, {{"status", "running"}});
  write_pipeline(folder, "good", 0.984, {{"status", "done"}});
  write_pipeline(folder, "paused", 0.5, {{"status", "stopped"}, {"paused", true}, {"failure", stop}});
  write_pipeline(folder, "bad", 0.3, {{"status", "done"}});
  Json pipelines = Json::array();
  std::ofstream journal(folder / "farm/journal.jsonl");
  double time = 1000;
  for (const char* name : {"running", "good", "paused", "bad"}) {
    pipelines.push_back({{"name", name}, {"folder", str("pipelines/", name)}, {"status", "waiting"}});
    journal << Json{{"time", time += 2}, {"pipeline", name}, {"event", "started"}} << "\n";
  }
  journal << R"({"time":1010,"pipeline":"paused","event":"paused","rung":0})"
          << "\n"
          << R"({"time":1014.5,"pipeline":"bad","event":"done"})"
          << "\n";
  journal.close();
  std::ofstream(folder / "farm/summary.json")
      << Json{{"status", "running"}, {"train_seconds", 3}, {"started", 1000}, {"pipelines", pipelines}};
  const Json data = report_data({folder / "farm"}), &farm = data["farms"][0];
  std::vector<std::string> rows;
  for (const Json& row : farm["rows"])
    rows.push_back(str(row["pipeline"].get<std::string>(), " ", row["status"].get<std::string>(), " ", row["place"]));
  EXPECT_THAT(rows, ElementsAre("good done 1", "bad done 2", "paused paused null", "running ended null"));
  EXPECT_EQ(farm["seconds"], 17.5);
  EXPECT_EQ(data["sentences"][1], "good has the best accuracy of the 4 runs of the farm farm, 0.984 (the worst: 0.3).");
  EXPECT_EQ(data["runs"][2]["status"], "paused");
  EXPECT_FALSE(data["runs"][2].contains("failure"));

  hide(folder / "farm/journal.jsonl");
  EXPECT_THAT(report_text({folder / "farm"}).notes,
              ElementsAre(AllOf(HasSubstr("farm/journal.jsonl cannot be read: "), HasSubstr("no schedule"))));
}

TEST(Report, NamesFilesThatCannotBeRead) {
  const TemporaryFolder folder;
  const std::string run = write_run(folder, "a", Json::object(), "\x80\xff\n{]\n");
  EXPECT_THAT(report_data({run})["notes"].dump(), HasSubstr("2 lines are no records"));
  hide(run + "/metrics.jsonl");
  EXPECT_THAT(report_text({run}).notes, ElementsAre(AllOf(HasSubstr(run + "/metrics.jsonl cannot be read: "),
                                                          HasSubstr("no curves of its metrics"))));
  hide(run + "/summary.json");
  EXPECT_THAT(error_of([&] { report_data({run}); }),
              AllOf(HasSubstr("io"), HasSubstr("summary.json cannot be read: "), HasSubstr("chmod -R a+rX " + run)));
}

TEST(Report, AFailedRunHasTheStepOfItsFailure) {
  const TemporaryFolder folder;
  const Json failure{{"step", 20}, {"cause", "signal"}, {"message", "killed"}};
  const auto pausing = [](const char* point) { return Json{{"train", {{"pause_after", point}}}, {"seed", 1}}; };
  const std::string a = write_run(
      folder, "a", {{"status", "failed"}, {"steps", nullptr}, {"failure", failure}, {"config", pausing("1 epoch")}});
  const std::string b = write_run(folder, "b", {{"config", pausing("3 epochs")}});
  const Json data = report_data({a, b});
  EXPECT_EQ(data["runs"][0]["step"], 20);
  EXPECT_TRUE(data["differences"]["keys"].empty()) << "a farm's halving sets train.pause_after";
}

TEST(Report, RanksOnlyRunsOnTheSameData) {
  const TemporaryFolder folder;
  const auto on = [&](const std::string& name, const std::string& path) {
    const Json data{{"name", "table"}, {"path", path}, {"target", "y"}};
    return write_run(folder, name, {{"config", {{"model", {{"name", "mlp"}}}, {"data", data}}}});
  };
  const std::string a = on("a", "one.csv"), b = on("b", "one.csv"), c = on("c", "two.csv");
  EXPECT_THAT(report_data({a, b})["sentences"][1].get<std::string>(), HasSubstr("Both runs on table"));
  EXPECT_THAT(report_data({a, c})["sentences"][1].get<std::string>(),
              AllOf(HasSubstr("a reached accuracy"), HasSubstr("c reached accuracy")));
}

TEST(Report, HostileTextsStayInsideTheData) {
  const TemporaryFolder folder;
  const std::string name = "<!--<script>alert(1)<";  // "/" cannot be part of a folder's name
  const Json metrics{{"</script><script>alert(2)</script>", {{"last", 1}, {"best", 1}}}, {"{{data}}", {{"best", 2}}}};
  const std::string run = write_run(folder, name, {{"name", "</script>"}, {"metrics", metrics}});
  const std::string page = report_page(report_text({run}).json, false);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script>alert")), HasSubstr("\\u003cscript>alert(2)"), HasSubstr("{{data}}")));
  const size_t begin = page.find('>', page.find("id=\"data\"")) + 1, end = page.find("</script>", begin);
  const Json data = parsed_json(page.substr(begin, end - begin));
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["runs"][0]["name"], name);
  EXPECT_TRUE(data["runs"][0]["metrics"].contains("</script><script>alert(2)</script>"));
}

TEST(Report, PageAllowsNothingFromElsewhere) {
  const std::string page = report_page("{}", false), other = report_page("{}", true);
  EXPECT_THAT(page, HasSubstr("default-src 'none'; img-src data:; style-src 'nonce-"));
  EXPECT_THAT(page, HasSubstr("connect-src 'none'"));
  EXPECT_THAT(other, HasSubstr("connect-src 'self'"));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("{{nonce}}")), Not(HasSubstr("unsafe-inline")), HasSubstr("MIT License")));
  const auto nonce = [](const std::string& text) { return text.substr(text.find("'nonce-"), 30); };
  EXPECT_NE(nonce(page), nonce(other));
}

TEST(Report, ManyRunsStayWithinTheLimit) {
  const TemporaryFolder folder;
  std::string lines;
  for (int step = 1; step <= 2000; ++step)
    lines += str(R"({"kind":"train","step":)", step, R"(,"seconds":)", step * 0.01, R"(,"metrics":{"loss":)",
                 std::sin(step) + 2, "}}\n");
  std::vector<std::string> runs;
  for (int i = 0; i < 12; ++i) runs.push_back(write_run(folder, str("run", i), Json::object(), lines));
  ReportLimits limits;
  limits.bytes = 100'000;
  EXPECT_THAT(report_text(runs, limits).json.size(), Lt(limits.bytes));
  limits.curves_of = 5;
  const Json data = report_data(runs, limits);
  EXPECT_EQ(data["runs"].size(), 12u);
  EXPECT_FALSE(data["runs"][4]["training"].empty());
  EXPECT_TRUE(data["runs"][5]["training"].empty());
  EXPECT_THAT(data["notes"].dump(), HasSubstr("curves of the first 5 runs; 7 are only in its table"));
}

TEST(Report, RefusesFoldersWithoutARun) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { report_data({folder / "none"}); }),
              AllOf(HasSubstr("command_line"), HasSubstr("no such folder")));
  EXPECT_THAT(error_of([&] { report_data({folder.path()}); }),
              AllOf(HasSubstr("command_line"), HasSubstr("holds no run (no summary.json)")));
  const std::string run = write_run(folder, "a", Json::object());
  EXPECT_THAT(error_of([&] { report_data({folder.path()}); }), HasSubstr("name them: convoy report " + run));
  EXPECT_EQ(report_data({run, run + "/"})["runs"].size(), 1u);
  std::ofstream(run + "/summary.json") << "{\"status\": 1}";
  EXPECT_THAT(error_of([&] { report_data({run}); }),
              AllOf(HasSubstr("corrupt_data"), HasSubstr("is damaged, or no summary of convoy")));
}

}  // namespace
}  // namespace convoy
