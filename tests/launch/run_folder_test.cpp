#include "launch/prepare/run_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/config/node.h"
#include "core/config/run_config.h"
#include "core/rank_state/summary.h"
#include "launch/prepare/prepare.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() : root_(fs::temp_directory_path() / str("convoy-folder-", getpid(), "-", counter())) {
    fs::create_directories(root_);
    request_.root = root_ / "runs";
    request_.name = "n";
    request_.resume = "auto";
    request_.resolved = {
        {"name", "n"}, {"seed", 1}, {"model", {{"name", "mlp"}}}, {"train", {{"epochs", 1}, {"resume", "auto"}}}};
  }
  ~RunFolderTest() override { fs::remove_all(root_); }
  static int counter() {
    static int n = 0;
    return ++n;
  }

  std::string folder(const std::string& name) { return root_ / "runs" / name; }
  void leave(const std::string& path, const std::string& status, bool checkpoint, Json config) {
    fs::create_directories(path + "/checkpoints");
    write_summary(path, {{"status", status}, {"exit_code", nullptr}, {"attempt", 0}, {"config", std::move(config)}});
    if (checkpoint) fs::create_directories(path + "/checkpoints/step-3");
  }
  std::string refusal(Failure kind) {
    try {
      open_run_folder(request_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.what();
    }
    return "";
  }

  fs::path root_;
  RunFolderRequest request_;
};

TEST_F(RunFolderTest, TheFirstRunGetsTheName) {
  const RunFolder run = open_run_folder(request_);
  EXPECT_EQ(run.path, folder("n"));
  EXPECT_TRUE(run.lock.held());
  EXPECT_FALSE(run.continued);
  EXPECT_EQ(run.attempt, 0);
  EXPECT_TRUE(fs::is_directory(folder("n") + "/logs"));
}

TEST_F(RunFolderTest, NeverChangesACompletedRun) {
  leave(folder("n"), "done", true, request_.resolved);
  const RunFolder run = open_run_folder(request_);
  EXPECT_EQ(run.path, folder("n-2"));
  EXPECT_THAT(run.notes.at(0), HasSubstr("n-2"));
}

TEST_F(RunFolderTest, ResumesAnUnfinishedRun) {
  leave(folder("n"), "done", true, request_.resolved);
  leave(folder("n-2"), "failed", true, request_.resolved);
  request_.resolved["train"]["epochs"] = 5;
  const RunFolder run = open_run_folder(request_);
  EXPECT_EQ(run.path, folder("n-2"));
  EXPECT_TRUE(run.continued);
  EXPECT_EQ(run.attempt, 1);
}

TEST_F(RunFolderTest, DoesNotResumeADifferentRun) {
  leave(folder("n"), "failed", true, request_.resolved);
  request_.resolved["seed"] = 2;
  request_.resolved["precision"] = "bf16";
  request_.command.options = "convoy run x.yaml --set seed=2";
  const std::string reason = refusal(Failure::output);
  EXPECT_THAT(reason, HasSubstr("\n  seed: 1 -> 2"));
  EXPECT_THAT(reason, HasSubstr("\n  precision: none -> bf16"));
  EXPECT_THAT(reason, HasSubstr("\n  convoy run x.yaml --set seed=2 --set train.resume=" + folder("n") + "\n"));
  EXPECT_THAT(reason, HasSubstr("--set train.resume=never"));
  request_.output = folder("n");
  EXPECT_THAT(refusal(Failure::output), HasSubstr("--output " + folder("n") + "-2"));
  request_.output = "";
  request_.resume = "never";
  EXPECT_EQ(open_run_folder(request_).path, folder("n-2"));
}

TEST_F(RunFolderTest, ResumesWithDifferentHardware) {
  request_.resolved["data"] = {{"path", "/a"}, {"prefetch", 2}};
  leave(folder("n"), "failed", true, request_.resolved);
  request_.resolved["device"] = "cpu";
  request_.resolved["data"] = {{"path", "/b"}, {"prefetch", 0}, {"changed", "allow"}};
  EXPECT_TRUE(open_run_folder(request_).continued);
}

// An older version trained one epoch by default, also with max_steps.
TEST_F(RunFolderTest, KeepsEpochsOfAnOlderVersion) {
  Json& train = request_.resolved["train"];
  train["max_steps"] = 1000;
  leave(folder("n"), "failed", true, request_.resolved);
  train["epochs"] = nullptr;
  {
    const RunFolder run = open_run_folder(request_);
    EXPECT_TRUE(run.continued);
    EXPECT_EQ(run.train, (Json{{"epochs", 1}}));
    EXPECT_THAT(run.notes, ::testing::Contains(HasSubstr("train.epochs stays 1")));
  }
  Json written = request_.resolved;
  SourceLocationWriter locations;
  locations.add("train.epochs", {"--set train.epochs=~", 0, 0});
  written["marks"] = locations.json();
  std::swap(request_.resolved, written);
  EXPECT_TRUE(open_run_folder(request_).train.empty());
  std::swap(request_.resolved, written);
  leave(folder("n"), "done", true, read_summary(folder("n"))["config"]);
  request_.output = folder("n");
  EXPECT_TRUE(open_run_folder(request_).already_done);
}

// Without a written length the default, one epoch, would end the run early.
TEST_F(RunFolderTest, KeepsAnOmittedLength) {
  struct Case {
    Json before, now;  // train.epochs and train.max_steps
    std::vector<std::string> written;
    Json kept;
    std::string note;
  };
  const auto length = [](const Json& epochs, const Json& steps) {
    return Json{{"epochs", epochs}, {"max_steps", steps}, {"resume", "auto"}};
  };
  const std::vector<Case> cases{
      {length(6, nullptr), length(1, nullptr), {}, {{"epochs", 6}}, "train.epochs stays 6, as this run began"},
      {length(nullptr, 900),
       length(1, nullptr),
       {},
       {{"epochs", nullptr}, {"max_steps", 900}},
       "train.max_steps stays"},
      {length(6, 900),
       length(1, nullptr),
       {},
       {{"epochs", 6}, {"max_steps", 900}},
       "stays 6, train.max_steps stays 900"},
      {length(1, nullptr), length(1, nullptr), {}, Json::object(), ""},
      {length(6, nullptr), length(2, nullptr), {"train.epochs"}, Json::object(), ""},
      {length(nullptr, 900), length(2, nullptr), {"train.epochs"}, Json::object(), ""},
      {length(nullptr, 900), length(nullptr, 50), {"train.max_steps"}, Json::object(), ""},
  };
  for (const Case& one : cases) {
    request_.resolved["train"] = one.before;
    leave(folder("n"), "failed", true, without_locations(request_.resolved));
    request_.resolved["train"] = one.now;
    SourceLocationWriter locations;
    locations.add("name", {"x.yaml", 1, 1});
    for (const std::string& key : one.written) locations.add(key, {"x.yaml", 2, 1});
    request_.resolved["marks"] = locations.json();
    const RunFolder run = open_run_folder(request_);
    EXPECT_TRUE(run.continued);
    EXPECT_EQ(run.train, one.kept) << one.before << " " << one.now;
    const std::string notes = join(run.notes, "; ");
    EXPECT_EQ(notes.find("stays") != std::string::npos, !one.note.empty()) << notes;
    EXPECT_THAT(notes, HasSubstr(one.note));
  }
}

// The same command resumes the run, and not the checkpoint from which the run started.
TEST_F(RunFolderTest, ResumesARunStartedFromACheckpoint) {
  leave(folder("other"), "done", true, request_.resolved);
  request_.resume = request_.resolved["train"]["resume"] = folder("other");
  leave(folder("n"), "failed", true, request_.resolved);
  EXPECT_EQ(open_run_folder(request_).path, folder("n"));
  RunFolderRequest given = request_;
  given.output = folder("n");
  EXPECT_TRUE(open_run_folder(given).continued);
  request_.resolved["seed"] = 2;
  EXPECT_EQ(open_run_folder(request_).path, folder("n-2"));
  // Refuses another checkpoint in `resume` if the folder has an unfinished run: the run would ignore it.
  given.resume = given.resolved["train"]["resume"] = folder("another");
  EXPECT_THROW(open_run_folder(given), Error);
}

TEST_F(RunFolderTest, UsesTheManifestWithoutASummary) {
  for (const char* left : {"", "{", "[]", "missing"}) {
    leave(folder("n"), "failed", true, request_.resolved);
    fs::create_directories(folder("n") + "/checkpoints/step-7");
    std::ofstream(folder("n") + "/checkpoints/step-3/manifest.json") << Json{{"config", request_.resolved}};
    fs::create_directories(folder("n") + "/checkpoints/step-8");
    fs::create_directories(folder("n") + "/checkpoints/step-9");
    std::ofstream(folder("n") + "/checkpoints/step-7/manifest.json") << "{";
    std::ofstream(folder("n") + "/checkpoints/step-8/manifest.json") << R"({"config": {}})";
    std::ofstream(folder("n") + "/checkpoints/step-9/manifest.json") << R"({"config": {"model": {}, "train": 5}})";
    std::ofstream(folder("n") + "/summary.json") << left;
    if (left == std::string("missing")) fs::remove(folder("n") + "/summary.json");
    RunFolderRequest changed = request_;
    changed.resolved["seed"] = 2;
    EXPECT_THROW(open_run_folder(changed), Error) << left;
    const RunFolder run = open_run_folder(request_);
    EXPECT_TRUE(run.continued) << left;
    EXPECT_EQ(run.path, folder("n"));
    EXPECT_THAT(run.notes.at(0), HasSubstr("step-3/manifest.json"));
  }
}

TEST_F(RunFolderTest, AFinishedRunPrintsTheCommandForMoreEpochs) {
  leave(folder("n"), "done", true, request_.resolved);
  request_.command.options = "convoy run x.yaml";
  std::string note = open_run_folder(request_).notes.at(0);
  EXPECT_THAT(note, HasSubstr("starts from the beginning in " + folder("n-2")));
  EXPECT_THAT(note, HasSubstr("convoy run x.yaml --set train.epochs=2 --set train.resume=" + folder("n")));
  fs::remove_all(folder("n-2"));
  request_.resolved["train"]["epochs"] = 30;
  request_.command.options = "convoy run x.yaml --set train.epochs=30";
  note = open_run_folder(request_).notes.at(0);
  EXPECT_THAT(note, HasSubstr("convoy run x.yaml --set train.epochs=30 --set train.resume=" + folder("n")));
  fs::remove_all(folder("n-2"));
  request_.resolved["train"]["epochs"] = 1;
  for (const char* typed : {"train.epochs=1", "'train.epochs=~'"}) {
    request_.command.options = str("convoy run x.yaml --set ", typed, " --set seed=1 --set ", typed);
    request_.output = folder("n");
    EXPECT_THAT(open_run_folder(request_).notes.at(0),
                HasSubstr("convoy run x.yaml --set seed=1 --set train.epochs=2 --set train.resume="));
  }
}

TEST_F(RunFolderTest, OptionsOfAHintPrecedeTheProgram) {
  leave(folder("n"), "done", true, request_.resolved);
  RunArguments arguments;
  arguments.ranks = 2;
  arguments.overrides = {"seed=1"};
  arguments.program = {"./my program", "--set", "train.epochs=7"};
  request_.command = typed_command(arguments);
  request_.output = folder("n");
  EXPECT_THAT(open_run_folder(request_).notes.at(0),
              HasSubstr("\n  convoy run --set seed=1 --ranks 2 --set train.epochs=2 --set train.resume=" + folder("n") +
                        " --output " + folder("n") + "-2 -- './my program' --set train.epochs=7"));
}

TEST_F(RunFolderTest, AFinishedFarmWithALargerGridPrintsTheCommandForMorePoints) {
  Json& grid = request_.resolved["strategy"]["grid"];
  grid = {{"optimizer.lr", {"1.0e-3", "1.0e-2"}}, {"loss", {"mse"}}};
  leave(folder("n"), "done", false, request_.resolved);
  request_.output = folder("n");
  grid = {{"optimizer", {{"lr", {"1.0e-2", "1.0e-3"}}}}, {"loss", {"mse"}}};
  EXPECT_THAT(refusal(Failure::output), ::testing::Not(HasSubstr("convoy add"))) << "the order of points differs";
  grid = {{"optimizer", {{"lr", {"1.0e-3", "1.0e-2", "1.0e-1"}}}}, {"loss", {"mse", {{"name", "bce"}, {"x", "1.0"}}}}};
  EXPECT_THAT(
      refusal(Failure::output),
      HasSubstr("\n  convoy add " + folder("n") +
                " --set 'strategy.grid.optimizer.lr=[1.0e-1]' --set 'strategy.grid.loss=[{name: \"bce\", x: 1.0}]'"));
  request_.resolved["seed"] = 7;
  EXPECT_THAT(refusal(Failure::output), ::testing::Not(HasSubstr("convoy add")));
}

TEST_F(RunFolderTest, RemovesLeftoversOfAKilledSave) {
  leave(folder("n"), "running", true, request_.resolved);
  const fs::path saved = fs::path(folder("n")) / "checkpoints";
  for (const char* left : {".step-9.tmp-12ab", ".old-step-3-34cd"}) fs::create_directories(saved / left);
  std::ofstream(saved / ".latest-56ef") << "step-9";
  EXPECT_TRUE(open_run_folder(request_).continued);
  EXPECT_FALSE(fs::exists(saved / ".step-9.tmp-12ab"));
  EXPECT_FALSE(fs::exists(saved / ".old-step-3-34cd"));
  EXPECT_FALSE(fs::exists(saved / ".latest-56ef"));
  EXPECT_TRUE(fs::exists(saved / "step-3"));
}

TEST_F(RunFolderTest, ResumesARunThatWasBeingStopped) {
  leave(folder("n"), "running", true, request_.resolved);
  std::ofstream(folder("n") + "/failure.json")
      << R"({"exit_code": 143, "failure": {"cause": "stopped", "message": "asked to stop"}})";
  EXPECT_TRUE(open_run_folder(request_).continued);
  EXPECT_EQ(read_summary(folder("n"))["status"], "stopped");
  leave(folder("n"), "stopped", true, request_.resolved);
  EXPECT_TRUE(open_run_folder(request_).continued) << "it is not done";
}

TEST_F(RunFolderTest, ResumesWithDifferentLogging) {
  leave(folder("n"), "failed", true, request_.resolved);
  request_.resolved["log"]["level"] = "debug";
  EXPECT_TRUE(open_run_folder(request_).continued);
}

TEST_F(RunFolderTest, FindsACheckpointWithoutLatest) {
  leave(folder("n"), "failed", false, request_.resolved);
  fs::create_directories(folder("n") + "/checkpoints/step-4");
  request_.resolved["seed"] = 2;
  EXPECT_THAT(refusal(Failure::output), HasSubstr("seed"));
}

TEST_F(RunFolderTest, RefusesAPathWithoutACheckpointFirst) {
  request_.resume = root_ / "nowhere";
  EXPECT_THAT(refusal(Failure::config), HasSubstr("train.resume: " + request_.resume + " holds no checkpoint"));
  EXPECT_FALSE(fs::exists(folder("n")));
}

TEST_F(RunFolderTest, RestartsWithoutACheckpoint) {
  leave(folder("n"), "failed", false, request_.resolved);
  request_.resolved["seed"] = 2;
  const RunFolder run = open_run_folder(request_);
  EXPECT_EQ(run.path, folder("n"));
  EXPECT_FALSE(run.continued);
}

TEST_F(RunFolderTest, SkipsALockedFolderOrRefusesItByPath) {
  const RunFolder first = open_run_folder(request_);
  const RunFolder second = open_run_folder(request_);
  EXPECT_EQ(second.path, folder("n-2"));
  request_.output = first.path;
  EXPECT_THAT(refusal(Failure::output), HasSubstr("another run uses it"));
}

TEST_F(RunFolderTest, ReleasesTheLock) {
  request_.output = root_ / "o";
  { const RunFolder run = open_run_folder(request_); }
  EXPECT_FALSE(fs::exists(request_.output + "/.lock"));
  EXPECT_TRUE(open_run_folder(request_).lock.held());
}

TEST_F(RunFolderTest, LeavesACompletedFolderGivenByPath) {
  request_.output = root_ / "o";
  leave(request_.output, "done", true, request_.resolved);
  EXPECT_TRUE(open_run_folder(request_).already_done);
  request_.resolved["train"]["resume"] = "never";
  EXPECT_TRUE(open_run_folder(request_).already_done);
  request_.resolved["train"]["epochs"] = 2;
  EXPECT_THAT(refusal(Failure::output), HasSubstr("train.epochs"));
}

TEST_F(RunFolderTest, RepairsAStaleRunningStatus) {
  leave(folder("n"), "running", true, request_.resolved);
  std::ofstream(folder("n") + "/failure.json") << R"({"exit_code": 75, "failure": {"message": "the server is gone"}})";
  const RunFolder run = open_run_folder(request_);
  const Json summary = read_summary(run.path);
  EXPECT_EQ(summary["status"], "failed");
  EXPECT_EQ(summary["exit_code"], 75);
  EXPECT_EQ(summary["failure"]["message"], "the server is gone");
  EXPECT_FALSE(fs::exists(folder("n") + "/failure.json"));
  EXPECT_THAT(run.notes.at(0), HasSubstr("the server is gone"));
}

TEST_F(RunFolderTest, RecordsAFailureOnlyForARunningRun) {
  const Abort gone{Failure::rendezvous, -1, 7, 0, "", "the server is gone"};
  leave(folder("n"), "running", true, request_.resolved);
  record_failure(folder("n"), gone);
  EXPECT_EQ(read_summary(folder("n"))["status"], "failed");
  EXPECT_EQ(read_summary(folder("n"))["exit_code"], 75);
  EXPECT_EQ(read_summary(folder("n"))["failure"]["step"], 7);
  EXPECT_FALSE(fs::exists(folder("n") + "/failure.json"));
  leave(folder("n"), "done", true, request_.resolved);
  record_failure(folder("n"), gone);
  EXPECT_EQ(read_summary(folder("n"))["status"], "done");
}

TEST_F(RunFolderTest, RefusesAFileOrAnUnwritableParent) {
  std::ofstream(root_ / "file") << "x";
  request_.output = root_ / "file";
  EXPECT_THAT(refusal(Failure::output), HasSubstr("no directory"));
  request_.output = root_ / "file" / "below";
  EXPECT_THAT(refusal(Failure::output), HasSubstr("--output"));
  request_.output = "/proc/convoy";
  EXPECT_THAT(refusal(Failure::output), HasSubstr("--output"));
}

TEST_F(RunFolderTest, RefusesUnwritableSubfolders) {
  request_.output = root_ / "o";
  fs::create_directories(request_.output + "/logs");
  std::ofstream(request_.output + "/checkpoints") << "x";
  EXPECT_THAT(refusal(Failure::output), HasSubstr("o/checkpoints: is no directory"));
  fs::remove(request_.output + "/checkpoints");
  if (geteuid() == 0) {  // root may write everywhere
    fs::permissions(root_, fs::perms::all | fs::perms::sticky_bit);
    ASSERT_EQ(chown(request_.output.c_str(), 65534, 65534), 0);
    ASSERT_EQ(seteuid(65534), 0);
    if (faccessat(AT_FDCWD, root_.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
      ASSERT_EQ(seteuid(0), 0);
      GTEST_SKIP() << "another user does not reach " << root_;
    }
  } else {
    chmod((request_.output + "/logs").c_str(), 0555);
  }
  const std::string reason = refusal(Failure::output);
  if (getuid() == 0) {
    ASSERT_EQ(seteuid(0), 0);
  }
  chmod((request_.output + "/logs").c_str(), 0755);
  EXPECT_THAT(reason, HasSubstr("o/logs: cannot be written"));
}

TEST_F(RunFolderTest, RefusesAFolderNamedLatest) {
  request_.output = root_ / "o";
  fs::create_directories(request_.output + "/checkpoints/latest");
  EXPECT_THAT(refusal(Failure::output), HasSubstr("o/checkpoints/latest: is a folder"));
}

TEST_F(RunFolderTest, NamesADeletedWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::create_directory(root_ / "gone");
  fs::current_path(root_ / "gone");
  fs::remove(root_ / "gone");
  request_.output = "o";
  const std::string reason = refusal(Failure::io);
  fs::current_path(before);
  EXPECT_THAT(reason, HasSubstr("the working directory was deleted"));
}

TEST_F(RunFolderTest, CreatesNothingInARefusedParent) {
  if (!others_reach_folders()) GTEST_SKIP() << "only the owner may enter / here";
  const fs::path open = root_ / "open";
  fs::create_directory(open);
  chmod(open.c_str(), 0777);
  request_.output = open / "between" / "o";
  EXPECT_THAT(refusal(Failure::refused), HasSubstr("chmod o-w " + open.string()));
  EXPECT_TRUE(fs::is_empty(open));
}

TEST_F(RunFolderTest, RefusesLinksInTheFolder) {
  request_.output = root_ / "o";
  for (const char* part : {"logs", "checkpoints"}) {
    fs::remove_all(request_.output);
    fs::create_directories(root_ / "elsewhere");
    fs::create_directories(request_.output);
    fs::create_directory_symlink(root_ / "elsewhere", fs::path(request_.output) / part);
    EXPECT_THAT(refusal(Failure::refused), HasSubstr(str("o/", part, ": is a symbolic link")));
  }
}

// A run would change the other file. Files that a run replaces may have a second name, as in a copy by `cp -al`.
TEST_F(RunFolderTest, RefusesAHardLinkToAForeignFile) {
  request_.output = root_ / "o";
  std::ofstream(root_ / "foreign") << "mine\n";
  for (const char* name : {"metrics.jsonl", "journal.jsonl", "logs/rank0.log", "logs/rank0.state"}) {
    fs::remove_all(request_.output);
    fs::create_directories(fs::path(request_.output) / "logs");
    fs::create_hard_link(root_ / "foreign", fs::path(request_.output) / name);
    EXPECT_THAT(refusal(Failure::output), HasSubstr(str("o/", name, ": is a hard link to another file")));
  }
  fs::remove_all(request_.output);
  fs::create_directories(fs::path(request_.output) / "logs");
  fs::create_hard_link(root_ / "foreign", fs::path(request_.output) / "config.yaml");
  EXPECT_EQ(refusal(Failure::output), "");
}

TEST_F(RunFolderTest, RefusesACheckpointOfADifferentModel) {
  request_.resolved["model"] = {{"name", "mlp"}, {"hidden", {8}}};
  leave(folder("n"), "failed", true, request_.resolved);
  std::ofstream(folder("n") + "/checkpoints/step-3/manifest.json") << Json{{"config", request_.resolved}};
  request_.resolved["seed"] = 2;
  EXPECT_THAT(refusal(Failure::output), HasSubstr("--set train.resume=" + folder("n")));
  request_.resolved["model"]["hidden"] = {9};
  const std::string reason = refusal(Failure::output);
  EXPECT_THAT(reason, HasSubstr("model.hidden.0: 8 -> 9"));
  EXPECT_THAT(reason, ::testing::Not(HasSubstr("--set train.resume=" + folder("n"))));
  EXPECT_THAT(reason, HasSubstr("--set train.resume=never"));
}

TEST_F(RunFolderTest, NamesTheFolderAndTheKeyInRefusals) {
  leave(folder("n"), "failed", true, {{"train", {{"evaluate_every", {{"every", 1}, {"unit", "epochs"}}}}}});
  request_.resolved = {{"train", {{"evaluate_every", {{"every", 5}, {"unit", "epochs"}}}}},
                       {"marks", {{"files", {"x.yaml"}}, {"at", {{"train.evaluate_every", {0, 6, 19}}}}}}};
  EXPECT_THAT(refusal(Failure::output), HasSubstr("x.yaml:6:19: train.evaluate_every: 1 epoch -> 5 epochs"));
}

TEST_F(RunFolderTest, RefusesACheckpointByPathForADifferentModelOnly) {
  const std::string other = root_ / "other";
  for (const char* step : {"step-9", "step-10"}) fs::create_directories(other + "/checkpoints/" + step);
  request_.resolved["model"] = {{"name", "mlp"}, {"hidden", {8}}, {"dropout", 0}};
  Json config = request_.resolved;
  config["name"] = "another";
  config["train"]["epochs"] = 7;
  config["optimizer"] = {{"name", "sgd"}, {"lr", 1}};
  config["model"]["dropout"] = 0.5;
  std::ofstream(other + "/checkpoints/step-10/manifest.json") << Json{{"config", config}};
  std::ofstream(other + "/checkpoints/step-9/manifest.json") << Json{{"config", {{"seed", 0}}}};
  request_.resume = request_.resolved["train"]["resume"] = other;
  EXPECT_TRUE(open_run_folder(request_).lock.held());
  request_.resolved["seed"] = 2;
  EXPECT_TRUE(open_run_folder(request_).lock.held());
  request_.resolved["model"]["hidden"] = {8, 8};
  EXPECT_THAT(refusal(Failure::config), HasSubstr("model.hidden: the state in " + other + "/checkpoints/step-10"));
  EXPECT_THAT(refusal(Failure::config), HasSubstr("model.hidden: [8] -> [8,8]"));
  request_.resume = other + "/checkpoints/step-10";
  EXPECT_THAT(refusal(Failure::config), HasSubstr("model.hidden"));
}

}  // namespace
}  // namespace convoy
