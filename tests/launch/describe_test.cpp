// Callers of `convoy-rank --describe`. Scripts replace it: they answer, hang, or leave their pipes to other processes.
#include "launch/prepare/describe.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class DescribeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "describe-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string program(const std::string& script) {
    const std::string path = folder_ + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << script;
    chmod(path.c_str(), 0755);
    return path;
  }
  // Returns the answer or the failure; checks that it took no longer than the limit.
  std::string message(const std::string& script, milliseconds limit, milliseconds within) {
    const std::string path = program(script);
    const auto start = std::chrono::steady_clock::now();
    std::string text;
    try {
      RunConfig config;
      config.resolved = {{"seed", std::string(300000, 'x')}};  // more than a pipe holds
      text = describe_run(path, config, "", limit).dump();
    } catch (const Error& error) {
      text = str(name_of(error.kind()), ": ", error.what());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, within) << text;
    return text;
  }

  std::string folder_;
};

TEST_F(DescribeTest, ReadsAnAnswerOfAnyLength) {
  const std::string text =
      message("cat > /dev/null; printf '{\"long\": \"'; head -c 200000 /dev/zero | tr '\\0' x; echo '\"}'",
              milliseconds(20000), milliseconds(20000));
  EXPECT_EQ(text.size(), 200000 + std::string("{\"long\":\"\"}").size());
}

TEST_F(DescribeTest, ReadsTheAnswerAlthoughAChildKeepsThePipes) {
  EXPECT_EQ(
      message("cat > /dev/null; setsid sleep 4 & echo '{\"version\": 1}'", milliseconds(20000), milliseconds(3500)),
      "{\"version\":1}");
  EXPECT_THAT(message("cat > /dev/null; setsid sleep 4 & echo 'model: is wrong' >&2; echo '{\"failed\": \"config\"}'; "
                      "exit 78",
                      milliseconds(20000), milliseconds(3500)),
              "config: model: is wrong");
}

TEST_F(DescribeTest, AKilledProcessIsNoConfigurationMistake) {
  const auto end = [this](const std::string& how) {
    return message("cat > /dev/null; " + how, milliseconds(20000), milliseconds(20000));
  };
  EXPECT_THAT(end("kill -9 $$"), AllOf(HasSubstr("training: "), HasSubstr("killed by signal 9 (KILL)")));
  EXPECT_THAT(end("echo broken >&2; kill -SEGV $$"),
              AllOf(HasSubstr("training: "), HasSubstr("SEGV"), HasSubstr("broken")));
  EXPECT_THAT(end("echo \"  what():  std::bad_alloc\" >&2; kill -ABRT $$"), HasSubstr("out_of_memory: "));
  EXPECT_THAT(end("echo 'error while loading shared libraries: libx.so: failed to map segment from shared object' >&2; "
                  "exit 127"),
              HasSubstr("out_of_memory: "));
  EXPECT_THAT(end("echo 'out of memory on the host' >&2; echo '{\"failed\": \"out_of_memory\"}'; exit 71"),
              HasSubstr("out_of_memory: out of memory"));
  EXPECT_THAT(end("echo 'convoy-rank: out of memory on the host' >&2; exit 71"),
              HasSubstr("out_of_memory: convoy-rank: out of memory"))
      << "a crash report";
}

TEST_F(DescribeTest, NamesAMissingLibTorchInEveryCommand) {
  const std::string linker =
      "echo 'convoy-rank: error while loading shared libraries: libc10.so: cannot open shared object file' >&2; "
      "exit 127";
  const std::string expected = "config: convoy-rank: error while loading shared libraries: libc10.so";
  EXPECT_THAT(message("cat > /dev/null; " + linker, milliseconds(20000), milliseconds(20000)),
              AllOf(HasSubstr(expected), HasSubstr("Torch_DIR=")));
  try {
    ask_rank_program(program("cat > /dev/null; " + linker), {"--predict"}, Json::object(), milliseconds(20000));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("Torch_DIR="));
  }
}

TEST_F(DescribeTest, SkipsTextBeforeTheAnswer) {
  EXPECT_EQ(message("cat > /dev/null; echo hello; echo '{\"version\": 1}'", milliseconds(20000), milliseconds(20000)),
            "{\"version\":1}");
}

TEST_F(DescribeTest, AnEndWithoutAnAnswerNamesThePlugins) {
  const auto reason = [this](const std::string& end) -> std::string {
    const std::string path = program("cat > /dev/null; " + end);
    try {
      RunConfig config;
      config.plugins = {"/a/libmine.so"};
      config.model.options = Options(Json{{"plugin", "/b/libother.so"}});
      describe_run(path, config);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::training);
      return error.what();
    }
    return "accepted";
  };
  const std::string blamed = "(/a/libmine.so, /b/libother.so) ended the process";
  EXPECT_THAT(reason("exit 0"), AllOf(HasSubstr("without an answer: "), HasSubstr(blamed)));
  EXPECT_THAT(reason("exit 3"), AllOf(HasSubstr("without an answer, with exit code 3: "), HasSubstr(blamed)));
  EXPECT_THAT(reason("echo bye >&2; exit 78"),
              AllOf(HasSubstr("with exit code 78: "), HasSubstr(blamed), HasSubstr("It printed:\nbye")));
}

TEST_F(DescribeTest, UsesTheTimeLimitOfTheRendezvous) {
  const std::string path = program("trap '' USR1; while :; do sleep 0.05; done");
  const auto start = std::chrono::steady_clock::now();
  try {
    RunConfig config;
    config.launch.rendezvous = 0.5;
    describe_run(path, config);
    FAIL() << "answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::hang);
    EXPECT_THAT(error.what(), HasSubstr("--set launch.rendezvous="));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(8000));
}

TEST_F(DescribeTest, ReportsThePositionOfAHungProcess) {
  const std::string text = message(R"(cat > /dev/null
trap 'echo "convoy-stack {\"rank\": -1, \"process\": -1, \"name\": \"worker\", \"state\": \"S\", \"frames\": )"
                                   R"([\"/nowhere/libslow.so+0x10\"]}" >&2
echo "convoy-stack null" >&2' USR1
while :; do sleep 0.05; done)",
                                   milliseconds(1000), milliseconds(5000));
  EXPECT_THAT(text, AllOf(HasSubstr("within 1 s"), HasSubstr("Its stacks:\n  worker: ? (libslow.so)"))) << text;
}

TEST_F(DescribeTest, LimitsTheWaitForAHungProcess) {
  EXPECT_THAT(
      message("setsid sleep 5 & trap '' USR1; while :; do sleep 0.05; done", milliseconds(500), milliseconds(4800)),
      HasSubstr("it reported no stack"));
}

}  // namespace
}  // namespace convoy
