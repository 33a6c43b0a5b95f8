// Reads run folders for `convoy top`.
#include "launch/farm/monitor/run_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/rank_state/state_file.h"
#include "launch/farm/run/farm.h"
#include "launch/prepare/run_folder.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class View : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / str("convoy-view-", getpid())).string();
    std::filesystem::create_directories(folder_ + "/logs");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::app) << text;
  }
  void happens(const std::string& name, const std::string& event, const std::string& more = "") const {
    write("journal.jsonl",
          str("{\"time\": 1, \"pipeline\": \"", name, "\", \"event\": \"", event, "\", \"attempt\": 1", more, "}\n"));
  }
  static std::string cells(const RunView& view, const std::string& name) {
    for (const std::string& line : view_lines(view, 0, 100))
      if (line.rfind(name + " ", 0) == 0) return line;
    return "";
  }
  std::string folder_;
};

TEST_F(View, RefusesAFolderWithoutARun) {
  const auto message = [](const std::string& folder) {
    try {
      RunReader reader(folder);
    } catch (const Error& error) {
      return str(name_of(error.kind()), " ", error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(folder_ + "/nowhere"), HasSubstr("no such folder"));
  EXPECT_THAT(message(folder_), HasSubstr("is no run folder"));
  write("file", "x");
  EXPECT_THAT(message(folder_ + "/file"), HasSubstr("is no folder"));
  const FolderLock lock(folder_);
  EXPECT_EQ(message(folder_), "no error") << "it has just begun";
}

TEST_F(View, ShowsARunThatLostItsSummary) {
  write("summary.json", "");
  write("logs/rank0.log", "x\n");
  write("checkpoints/step-7/manifest.json", R"({"config": {"model": {}}})");
  const RunView view = RunReader(folder_).read();
  EXPECT_TRUE(view.over);
  EXPECT_THAT(view_heading(view), HasSubstr("ended, and its summary.json is missing"));
  EXPECT_THAT(cells(view, folder_), HasSubstr("unknown"));
}

TEST_F(View, FindsTheOwnerOfTheLock) {
  EXPECT_FALSE(lock_owner(folder_).held);
  {
    const FolderLock lock(folder_);
    EXPECT_TRUE(lock_owner(folder_).held);
    EXPECT_EQ(lock_owner(folder_).pid, getpid());
    EXPECT_TRUE(lock.held());
  }
  write(".lock", "");  // a killed process leaves it
  EXPECT_FALSE(lock_owner(folder_).held);
}

TEST_F(View, FollowsAFarm) {
  const FolderLock lock(folder_);
  write("summary.json", R"({"status": "running", "name": "farm", "pipelines": []})");
  for (const char* name : {"a", "b", "c", "d"}) happens(name, "queued");
  RunReader reader(folder_);
  EXPECT_EQ(view_heading(reader.read()), "farm: running (4 waiting)");

  happens("c", "started");
  write("pipelines/c/progress.json",
        R"({"step": 40, "steps": 400, "samples_per_second": 2500, "loss": 0.25, "remaining_seconds": 75})");
  write("pipelines/c/logs/x", "");
  StateFile state(folder_ + "/pipelines/c/logs/rank0.state");
  state.phase("forward/backward");
  state.step(44);
  write("resources.json",
        R"([{"kind": "resources", "pipeline": "c", "cpu": 0.97, "memory_bytes": 1610612736, "gpu": 0.5,
                              "gpu_memory_bytes": 1048576, "processes": 2}])");
  happens("d", "started");
  happens("a", "failed", R"(, "cause": "memory")");
  write("journal.jsonl", R"({"time": 2, "pipeline": "b", "ev)");  // half a line
  RunView view = reader.read();
  EXPECT_EQ(view_heading(view), "farm: running (2 running, 1 waiting, 1 failed), 1.0 cores busy");
  EXPECT_EQ(view.rows[0].name, "c");
  EXPECT_EQ(cells(view, "c"), "c         training        44/400  2.5k/s  0.25  1:15  97%   1.50G  50%          1M");
  EXPECT_THAT(cells(view, "d"), HasSubstr("starting"));
  EXPECT_THAT(cells(view, "a"), HasSubstr("failed: memory"));

  write("journal.jsonl", R"(ent": "done", "attempt": 1})"
                         "\n");
  write("pipelines/b/summary.json", R"({"status": "done", "steps": 12, "metrics": {"loss": {"last": 0.5}}})");
  state.phase("evaluating");
  view = reader.read();
  EXPECT_EQ(view.rows.back().name, "b");
  EXPECT_THAT(cells(view, "b"), HasSubstr("12/12"));
  EXPECT_THAT(cells(view, "c"), HasSubstr("evaluating"));
  state.step(444);  // the next epoch of a program that asks for one after the other
  EXPECT_THAT(cells(reader.read(), "c"), HasSubstr(" 444 "));
  EXPECT_FALSE(view.over);
}

TEST_F(View, ReportsAKilledFarm) {
  write("summary.json", R"({"status": "running", "name": "farm", "pipelines": []})");
  happens("a", "started");
  const RunView view = RunReader(folder_).read();
  EXPECT_TRUE(view.over);
  EXPECT_THAT(view_heading(view), HasSubstr("was killed"));
  EXPECT_THAT(cells(view, "a"), HasSubstr("gone"));
}

TEST_F(View, ShowsAFarmThatLostItsSummary) {
  write("summary.json", "{");
  happens("a", "done");
  const RunView view = RunReader(folder_).read();
  EXPECT_TRUE(view.farm);
  EXPECT_THAT(view_heading(view), HasSubstr("its summary.json is missing or damaged"));
  EXPECT_THAT(cells(view, "a"), HasSubstr("done"));
}

TEST_F(View, ShowsASingleRunAsOneRow) {
  write("summary.json",
        R"({"status": "failed", "name": "ncf", "steps": 7, "failure": {"cause": "signal", "message": "rank 1 died"}})");
  const RunView view = RunReader(folder_ + "/").read();
  ASSERT_EQ(view.rows.size(), 1u);
  EXPECT_EQ(view_heading(view), "ncf: failed: rank 1 died");
  EXPECT_THAT(cells(view, "ncf"), HasSubstr("failed: signal"));
  EXPECT_EQ(view.rows[0].step, 7);
}

TEST_F(View, ShowsTheStepOfAFailure) {
  write("summary.json", R"({"status": "failed", "name": "farm", "pipelines": []})");
  write("pipelines/a/summary.json", R"({"status": "failed", "steps": null, "failure": {"cause": "nan", "step": 5}})");
  write("pipelines/b/summary.json", R"({"status": "running", "steps": null, "failure": null})");
  for (const char* name : {"a", "b"}) happens(name, "failed");
  write("pipelines/b/logs/x", "");
  StateFile state(folder_ + "/pipelines/b/logs/rank0.state");
  state.step(9);
  const RunView view = RunReader(folder_).read();
  ASSERT_EQ(view.rows.size(), 2u);
  EXPECT_EQ(view.rows[0].step, 5);
  EXPECT_EQ(view.rows[1].step, 9);
}

TEST_F(View, ShowsTheTailOfTheNewestLog) {
  write("logs/rank1.log", "old\n");
  std::filesystem::last_write_time(folder_ + "/logs/rank1.log",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  write("logs/rank0.log", std::string(100000, 'x') + "\nfirst\n\x1b[31mred\x1b[0m\tand\r\nlast \xff\n");
  std::string path;
  const std::vector<std::string> tail = log_tail(folder_, 3, path);
  EXPECT_EQ(path, folder_ + "/logs/rank0.log");
  EXPECT_THAT(tail, ::testing::ElementsAre("first", "red and", "last ?"));
  EXPECT_EQ(log_tail(folder_, 1, path).size(), 1u);
  EXPECT_TRUE(log_tail(folder_ + "/nowhere", 3, path).empty());
}

TEST_F(View, KeepsColumnsWhileScrolling) {
  RunView view;
  view.farm = true;
  for (int i = 0; i < 50; ++i) {
    ViewRow row;
    row.name = str("pipeline-", i);
    row.state = "waiting";
    view.rows.push_back(row);
  }
  const std::vector<std::string> lines = view_lines(view, 40, 5);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[0], StartsWith("pipeline     state"));
  EXPECT_THAT(lines[1], StartsWith("pipeline-40  waiting"));
  EXPECT_THAT(lines[5], StartsWith("pipeline-44"));
}

}  // namespace
}  // namespace convoy
