// Output files are complete or absent. Run references name the right checkpoint.
#include "core/files/output_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/text.h"
#include "core/files/run_files.h"
#include "tests/support/errors.h"
#include "tests/support/failing_files.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class OutputTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return temporary_ / name; }
  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(OutputTest, AppearsWholeAtTheEnd) {
  const std::string large(1 << 20, 'x');
  {
    OutputFile file(at("out.csv"), false);
    file.write("a,b\n");
    file.write(large);
    file.write("end");
    EXPECT_FALSE(fs::exists(at("out.csv")));
    EXPECT_EQ(file.bytes(), 4 + (1 << 20) + 3);
    file.commit();
  }
  EXPECT_EQ(read_file(at("out.csv")), "a,b\n" + large + "end");
  EXPECT_THAT(names_in(folder_), ElementsAre("out.csv"));
}

TEST_F(OutputTest, LeavesNothingWithoutACommit) {
  { OutputFile(at("out"), false).write("half"); }
  EXPECT_THAT(names_in(folder_), IsEmpty());
}

TEST_F(OutputTest, AFullDiskLeavesTheOlderResult) {
  const std::vector<std::string> operations{"create", "write", "close", "rename"};
  for (int operation = 0; operation < 4; ++operation) {
    std::ofstream(at("out")) << "older";
    FailingFiles disk(operation, ENOSPC);
    const std::string message = message_of(
        [&] {
          OutputFile file(at("out"), true, disk);
          file.write("newer");
          file.commit();
        },
        Failure::io);
    EXPECT_THAT(message, HasSubstr(at("out") + ": No space left"));
    EXPECT_THAT(message, Not(HasSubstr(".tmp-"))) << "the user does not know the temporary name";
    EXPECT_EQ(disk.failed_at().rfind(operations[size_t(operation)] + " ", 0), 0u) << disk.failed_at();
    EXPECT_EQ(read_file(at("out")), "older");
    EXPECT_THAT(names_in(folder_), ElementsAre("out"));
  }
}

TEST_F(OutputTest, AnExistingResultIsKept) {
  std::ofstream(at("out")) << "older";
  EXPECT_THAT(message_of([&] { check_output_path(at("out"), false, "--to"); }, Failure::output), HasSubstr("--force"));
  EXPECT_EQ(message_of([&] { check_output_path(at("out"), true, "--to"); }, Failure::output), "");
  OutputFile file(at("new"), false);
  file.write("mine");
  std::ofstream(at("new")) << "of somebody else";
  EXPECT_THAT(message_of([&] { file.commit(); }, Failure::output), HasSubstr("another process"));
  EXPECT_EQ(read_file(at("new")), "of somebody else");
}

TEST_F(OutputTest, RefusesInvalidPaths) {
  EXPECT_THAT(message_of([&] { check_output_path(folder_, true, "--to"); }, Failure::output), HasSubstr("is a folder"));
  EXPECT_THAT(message_of([&] { check_output_path(folder_ + "/", true, "--to"); }, Failure::output),
              HasSubstr("names no file"));
  EXPECT_THAT(message_of([&] { check_output_path(at("no/out"), true, "--to"); }, Failure::output),
              HasSubstr("mkdir -p"));
}

TEST_F(OutputTest, InputsOfOptionsFollowOneRule) {
  const auto refusal = [&](const std::string& name, Failure kind = Failure::command_line) {
    return message_of([&] { check_input_path(at(name), "--data", "give rows"); }, kind);
  };
  EXPECT_THAT(refusal("none"), HasSubstr("/none: no such file; give rows"));
  fs::create_directories(at("folder"));
  EXPECT_THAT(refusal("folder"), HasSubstr("is a folder"));
  std::ofstream(at("rows")) << "x";
  EXPECT_EQ(refusal("rows"), "");
}

class ReferenceTest : public OutputTest {
 protected:
  void SetUp() override {
    OutputTest::SetUp();
    for (const char* step : {"step-20", "step-100"}) fs::create_directories(at("run/checkpoints/") + step);
    std::ofstream(at("run/checkpoints/best")) << "step-20\n";
  }
  MemberPath named(const std::string& text) const { return checkpoint_path(at(text), "RUN"); }
};

TEST_F(ReferenceTest, NamesACheckpoint) {
  EXPECT_EQ(named("run").path, at("run"));
  EXPECT_EQ(named("run@best").path, at("run/checkpoints/step-20"));
  EXPECT_EQ(named("run@step-100").path, at("run/checkpoints/step-100"));
  EXPECT_EQ(named("run/checkpoints@best").path, at("run/checkpoints/step-20"));
  EXPECT_EQ(named("run@best@member3").path, at("run/checkpoints/step-20"));
  EXPECT_EQ(named("run@best@member3").member, 3);
  EXPECT_EQ(named("run@member0").path, at("run"));
  fs::create_directories(at("run@home"));
  EXPECT_EQ(named("run@home").path, at("run@home")) << "a folder may have an @ in its name";
  EXPECT_EQ(named("none@best").path, at("none")) << "the caller reports that there is no such run";
  EXPECT_EQ(run_of(at("run@best@member3")), at("run"));
  EXPECT_EQ(run_of(at("run@")), at("run"));
  EXPECT_EQ(run_of(at("run@home")), at("run@home"));
  EXPECT_THAT(checkpoint_steps(at("run/checkpoints")), ElementsAre(20, 100));
}

TEST_F(ReferenceTest, RefusesAMissingCheckpoint) {
  const auto refusal = [&](const std::string& text) { return message_of([&] { named(text); }, Failure::config); };
  const std::string run = at("run");
  const std::string has = str("; it has ", run, "@best, ", run, "@step-100, ", run, "@step-20; type one of these, or ",
                              run, " for the newest");
  EXPECT_EQ(refusal("run@step-7"), str("RUN: ", run, " has no checkpoint of step 7", has));
  for (const char* word : {"", "bset", "member", "step-x"})
    EXPECT_EQ(refusal(str("run@", word)), str("RUN: ", run, " is followed by @", word,
                                              ", and only @best, @step-N and @memberN have a meaning", has));
  EXPECT_THAT(refusal("run@member3@best"), HasSubstr("type " + run + "@best@member3"));
  EXPECT_THAT(advice_for_damage(at("run/checkpoints/step-100")), HasSubstr("name an older one: " + run + "@best"));
  EXPECT_THAT(advice_for_damage(at("run/checkpoints/step-20/")), HasSubstr("there is no older one"));
  fs::remove_all(at("run/checkpoints/step-20"));
  EXPECT_THAT(refusal("run@best"), HasSubstr("which train.keep_best keeps; it has " + run + "@step-100"))
      << "its folder is gone";
  fs::remove_all(at("run/checkpoints"));
  EXPECT_THAT(refusal("run@best"), HasSubstr("it has no checkpoint: train it with train.checkpoint_every"));
}

TEST_F(ReferenceTest, NamesARunOfAFarm) {
  fs::create_directories(at("farm"));
  std::ofstream(at("farm/summary.json")) << R"({"pipelines": [{"folder": "pipelines/a"}]})";
  EXPECT_THAT(message_of([&] { named("farm@best"); }, Failure::config),
              HasSubstr("is the folder of a farm; name one of its runs, as in " + at("farm/pipelines/a@best")));
}

}  // namespace
}  // namespace convoy
