// Files that a running job writes for other programs.
#include "launch/job/live_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/files/files.h"
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
  LiveFiles files(folder.path() + "/ncf-2", folder.path() + "/{name}.prom", std::chrono::steady_clock::now());
  files.begin();
  EXPECT_THAT(read_file(folder.path() + "/ncf-2.prom"), HasSubstr("convoy_up{run=\"ncf-2\"} 1\n"));
  files.end(0);
  EXPECT_THAT(read_file(folder.path() + "/ncf-2.prom"), HasSubstr("convoy_up{run=\"ncf-2\"} 0\n"));
}

TEST(LiveFiles, RefusesAFileThatCannotBeWritten) {
  const TemporaryFolder folder;
  LiveFiles files(folder.path(), folder.path() + "/nowhere/x.prom", std::chrono::steady_clock::now());
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
