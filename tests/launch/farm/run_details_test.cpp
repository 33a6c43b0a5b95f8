// Curves and times for `convoy top`.
#include "launch/farm/monitor/run_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(RunDetails, DrawsACurve) {
  // Two dots wide, four high: from the lower left to the upper right.
  EXPECT_THAT(braille_curve({{0, 0}, {1, 1}}, 1, 1), ElementsAre("\u2848"));
  EXPECT_THAT(braille_curve({{0, 1}, {1, 0}}, 1, 1), ElementsAre("\u2881"));
  // A constant is a line at the bottom.
  EXPECT_THAT(braille_curve({{0, 5}, {1, 5}, {2, 5}, {3, 5}}, 2, 1), ElementsAre("\u28c0\u28c0"));
  EXPECT_THAT(braille_curve({{0, 0}, {1, 1}}, 1, 2), ElementsAre("\u2808", "\u2840"));
  EXPECT_THAT(braille_curve({}, 2, 1), ElementsAre("\u2800\u2800"));
}

TEST(RunDetails, ReadsWhatAFileHasGained) {
  const TemporaryFolder folder;
  RunDetails details(folder.path());
  EXPECT_THAT(details.lines(10), IsEmpty());
  std::ofstream file(folder.path() + "/metrics.jsonl");
  file << R"({"kind":"train","step":1,"metrics":{"loss":2.0}})" << '\n'
       << R"({"kind":"train","step":5,"metrics":{"loss":1.0}})" << '\n'
       << R"({"kind":"train","step":9,"met)" << std::flush;
  EXPECT_EQ(details.lines(10).front(), "loss: 1 to 2, last 1, steps 1 to 5");
  EXPECT_EQ(details.lines(10).size(), 4u);
  file << R"(rics":{"loss":"nan"}})" << '\n'
       << R"({"kind":"train","step":11,"metrics":{"loss":0.5}})" << '\n'
       << std::flush;
  EXPECT_EQ(details.lines(10).front(), "loss: 0.5 to 2, last 0.5, steps 1 to 11");
}

TEST(RunDetails, ShowsTheTimesOfARunningRun) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/progress.json") << R"({"times": {"forward": 3.0, "start_up": 1.0, "data": 0.0}})";
  EXPECT_THAT(RunDetails(folder.path()).lines(10), ElementsAre("time of rank 0: forward 75 %, start-up 25 %"));
}

}  // namespace
}  // namespace convoy
