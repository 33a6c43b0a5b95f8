// Files that a running job writes for other programs.
#include "launch/job/live_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <thread>

#include "core/base/error.h"
#include "core/files/files.h"
#include "core/rank_state/summary.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LiveFiles, WritesPrometheusText) {
  const Json progress = {{"step", 12}, {"samples_per_second", 3.5}, {"loss", "nan"}};
  const std::string text = prometheus_text("a \"b\"\\", progress, {{"metrics", {{"hr@10", 0.5}}}},
                                           {{1,
                                             {{"rank", 1},
                                              {"memory_bytes", 4096},
                                              {"cpu_s", 2},
                                              {"times", {{"data", 0.25}, {"communication", 1}, {"waiting", 2}}}}}},
                                           -1);
  EXPECT_THAT(text, HasSubstr("# TYPE convoy_step gauge\nconvoy_step{run=\"a \\\"b\\\"\\\\\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("} NaN\n"));
  EXPECT_THAT(text, HasSubstr("metric=\"hr@10\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE convoy_rank_cpu_seconds_total counter\n"));
  EXPECT_THAT(text, HasSubstr("rank=\"1\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("rank=\"1\",part=\"data\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("rank=\"1\",part=\"communication\"} 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("exit_code")));
  EXPECT_THAT(prometheus_text("r", Json::object(), Json::object(), {}, 70),
              HasSubstr("convoy_exit_code{run=\"r\"} 70\n"));
}

TEST(LiveFiles, NamesTheFileByTheRunFolder) {
  const TemporaryFolder folder;
  LiveFiles files(folder.path() + "/ncf-2", folder.path() + "/{name}.prom", std::chrono::steady_clock::now(), nullptr);
  files.begin();
  EXPECT_THAT(read_file(folder.path() + "/ncf-2.prom"), HasSubstr("convoy_up{run=\"ncf-2\"} 1\n"));
  files.end(0, nullptr);
  EXPECT_THAT(read_file(folder.path() + "/ncf-2.prom"), HasSubstr("convoy_up{run=\"ncf-2\"} 0\n"));
}

double start_up_in(const std::string& text) {
  const std::string sample = "part=\"start_up\"} ";
  return std::stod(text.substr(text.find(sample) + sample.size()));
}

TEST(LiveFiles, StartUpBeginsWithTheRun) {
  using std::chrono::seconds;
  const TemporaryFolder folder;
  const std::string file = folder / "x.prom";
  LiveFiles files(folder.path(), file, std::chrono::steady_clock::now() - seconds(5), nullptr);
  files.resources({{"rank", 0}, {"memory_bytes", 1}, {"times", {{"start_up", 0.5}, {"data", 0.5}}}});
  files.progress({{"step", 1}, {"times", {{"start_up", 0.5}, {"data", 0.75}}}});
  const double shown = start_up_in(read_file(file));
  EXPECT_NEAR(shown, 4.5, 0.3);
  EXPECT_EQ(number_in(parsed_json(read_file(folder / "progress.json"))["times"], "start_up", 0), shown);
  files.end(0, {{"ranks", {{{"rank", 0}, {"start_up", 4.75}, {"data", 1}}}}});
  EXPECT_EQ(start_up_in(read_file(file)), std::max(shown, 4.75)) << "the value of the summary";
}

// Ends writes of this process beyond its first byte, as a full disk does.
class NoRoom {
 public:
  NoRoom() : before_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit none{0, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoRoom() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    signal(SIGXFSZ, before_);
  }

 private:
  void (*before_)(int);
  rlimit limit_{};
};

TEST(LiveFiles, WarnsOnceOfAFullDiskAndWritesAgain) {
  const TemporaryFolder folder;
  const std::string file = folder / "x.prom";
  std::vector<std::string> warnings;
  LiveFiles files(folder.path(), file, std::chrono::steady_clock::now(),
                  [&](const std::string& text) { warnings.push_back(text); });
  const auto progress = [&](int step) {
    files.progress({{"step", step}});
    std::this_thread::sleep_for(std::chrono::milliseconds(950));  // it writes about once a second
  };
  files.begin();
  {
    const NoRoom full;
    progress(1);
    progress(2);
  }
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("log.prometheus: cannot write " + file));
  EXPECT_THAT(warnings[0], HasSubstr("the run continues and tries again"));
  progress(3);
  EXPECT_THAT(read_file(file), HasSubstr("convoy_step"));
  {
    const NoRoom full;
    files.end(0, nullptr);
  }
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[1], HasSubstr("the file is removed"));
  EXPECT_FALSE(std::filesystem::exists(file)) << "it said that the job runs";
}

// A run may end before a rank has reported its resources.
TEST(LiveFiles, EndsWithARankThatHasReportedNothing) {
  const TemporaryFolder folder;
  LiveFiles files(folder.path(), folder.path() + "/x.prom", std::chrono::steady_clock::now(), nullptr);
  files.begin();
  files.end(0, {{"ranks", {{{"rank", 0}, {"start_up", 0.5}, {"forward", 0.25}}}}});
  EXPECT_THAT(read_file(folder.path() + "/x.prom"), HasSubstr("0.25"));
}

TEST(LiveFiles, RefusesAFileThatCannotBeWritten) {
  const TemporaryFolder folder;
  LiveFiles files(folder.path(), folder.path() + "/nowhere/x.prom", std::chrono::steady_clock::now(), nullptr);
  try {
    files.begin();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::output);
    EXPECT_THAT(error.what(), HasSubstr("log.prometheus"));
  }
}

}  // namespace
}  // namespace convoy
