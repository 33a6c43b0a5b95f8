// Which way is kept, from what was measured; how a choice is told.
#include "launch/trial.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

TriedWay way(const std::string& name, double seconds, int ranks = 2, int processes = 1) {
  TriedWay way{name, Placed{}, "", seconds};
  way.placed->job.ranks.resize(static_cast<size_t>(ranks));
  way.placed->job.processes.resize(static_cast<size_t>(processes));
  return way;
}

TriedWay left_out(const std::string& name, const std::string& why) { return {name, std::nullopt, why, -1}; }

TEST(Trial, TheFastestOfThoseThatWereMeasuredIsKept) {
  const TriedWay stacked = way("stacked", 3e-3, 1), threads = way("threads", 2e-3),
                 processes = way("processes", 2.5e-3);
  EXPECT_EQ(fastest_of({stacked, threads, processes}), 1);
  EXPECT_EQ(fastest_of({stacked, way("threads", 4e-3), way("processes", 5e-3)}), 0);
  EXPECT_EQ(fastest_of({stacked, threads, way("processes", 1e-3)}), 2);
  // One that was not measured has no time, and is not the fastest.
  EXPECT_EQ(fastest_of({stacked, way("threads", -1), processes}), 2);
  EXPECT_EQ(fastest_of({left_out("stacked", "as threads"), way("threads", 9)}), 1);
  EXPECT_EQ(fastest_of({left_out("stacked", "no"), way("threads", -1)}), -1);
  EXPECT_EQ(fastest_of({}), -1);
}

TEST(Trial, AChoiceTellsWhatWasMeasuredAndWhatNot) {
  TriedWay failed = way("processes", -1, 2, 2);
  failed.left_out = "its trial ended with exit 71";
  const Json told =
      choice_json({left_out("stacked", "it is threads"), way("threads", 2e-3), failed}, "threads", "the fastest");
  EXPECT_EQ(
      told,
      (Json{{"taken", "threads"},
            {"because", "the fastest"},
            {"tried",
             {{{"way", "stacked"}, {"left_out", "it is threads"}},
              {{"way", "threads"}, {"ranks", 2}, {"processes", 1}, {"seconds_per_step", 2e-3}},
              {{"way", "processes"}, {"ranks", 2}, {"processes", 2}, {"left_out", "its trial ended with exit 71"}}}}}));
}

}  // namespace
}  // namespace convoy
