// Parts of a rank's time, and the split of waits by the arrivals of other ranks.
#include "core/rank_state/time_breakdown.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace convoy {
namespace {

using std::chrono::milliseconds;

void pass(int milliseconds_passed) { std::this_thread::sleep_for(milliseconds(milliseconds_passed)); }

double of(TimeBreakdown& times, TimePart part) { return times.seconds()[static_cast<size_t>(part)]; }

TEST(TimeBreakdown, AddsUpToTheWallTime) {
  const auto start = std::chrono::steady_clock::now();
  TimeBreakdown times;
  pass(10);
  times.phase(TimePart::data);
  pass(5);
  times.phase(TimePart::forward);
  {
    const TimeBreakdown::Scope backward(times, TimePart::backward);
    pass(20);
    const TimeBreakdown::Scope communication(times, TimePart::communication);
    pass(5);
  }
  times.phase(TimePart::other);
  const auto seconds = times.seconds();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_NEAR(std::accumulate(seconds.begin(), seconds.end(), 0.0), wall, 0.001);
  EXPECT_GE(of(times, TimePart::start_up), 0.010);
  EXPECT_GE(of(times, TimePart::data), 0.005);
  EXPECT_GE(of(times, TimePart::backward), 0.020);
  EXPECT_GE(of(times, TimePart::communication), 0.005);
  EXPECT_LT(of(times, TimePart::forward), 0.005) << "details do not count for the part around them";
}

TEST(TimeBreakdown, CountsCommunicationOfAnEvaluationAsEvaluation) {
  TimeBreakdown times;
  times.phase(TimePart::evaluation);
  {
    const TimeBreakdown::Scope communication(times, TimePart::communication);
    EXPECT_FALSE(communication.counts());
    pass(2);
  }
  EXPECT_EQ(of(times, TimePart::communication), 0);
  EXPECT_GE(of(times, TimePart::evaluation), 0.002);
}

TEST(TimeBreakdown, IgnoresOtherThreads) {
  TimeBreakdown times;
  times.phase(TimePart::forward);
  std::thread other([&] {
    EXPECT_FALSE(TimeBreakdown::Scope(times, TimePart::backward).counts());
    times.phase(times.phase(TimePart::data));
  });
  times.phase(TimePart::other);  // at the same time, for the thread sanitizer
  other.join();
  EXPECT_EQ(of(times, TimePart::data), 0);
  EXPECT_EQ(of(times, TimePart::backward), 0);
}

// One call on two ranks: rank 0 arrives at once and waits, rank 1 arrives 20 ms later.
TEST(TimeBreakdown, FindsTheRankThatArrivedLast) {
  TimeBreakdown first, second;
  const auto group = first.add_group("world", {0, 1}), same = second.add_group("world", {0, 1});
  first.phase(TimePart::other);
  group->called(1);
  {
    TimeBreakdown::Scope wait(first, TimePart::communication);
    pass(20);
    same->called(1);
    pass(5);
    const int64_t from = wait.from();
    group->waited(1, from, wait.end());
  }
  const auto all = std::vector<std::vector<int64_t>>{first.arrivals(), second.arrivals()};
  first.split_waits(all);
  EXPECT_NEAR(of(first, TimePart::waiting), 0.020, 0.004);
  EXPECT_GE(of(first, TimePart::communication), 0.005);
  EXPECT_NEAR(first.waits().at(1), of(first, TimePart::waiting), 1e-9);
  second.split_waits(all);
  EXPECT_EQ(of(second, TimePart::waiting), 0) << "the last rank waits for nobody";
}

TEST(TimeBreakdown, SamplesTheSameCallsOnAllRanks) {
  TimeBreakdown times, other;
  const auto group = times.add_group("world", {0, 1}), same = other.add_group("world", {0, 1});
  for (int64_t number = 1; number <= 10000; ++number) group->called(number);
  for (int64_t number = 1; number <= 10000; ++number) same->called(number);
  const std::vector<int64_t> mine = times.arrivals(), theirs = other.arrivals();
  ASSERT_EQ(mine.size(), theirs.size());
  EXPECT_LE(mine.size(), 2u + 2 * 256);
  EXPECT_GE(mine.size(), 2u + 2 * 128);
  for (size_t i = 2; i < mine.size(); i += 2) EXPECT_EQ(mine[i], theirs[i]);
  EXPECT_GT(mine[mine.size() - 2], 9900) << "the sample covers the whole run";
}

TEST(TimeBreakdown, ChangesTheOffsetOfTheClockLinearly) {
  TimeBreakdown times;
  EXPECT_EQ(times.on_common_clock(100), 100);
  times.set_clock_offset(1000);
  const int64_t begin = steady_nanoseconds();
  pass(10);
  times.set_clock_offset(3000);
  const int64_t end = steady_nanoseconds();
  EXPECT_NEAR(static_cast<double>(times.on_common_clock(begin) - begin), 1000, 100);
  EXPECT_NEAR(static_cast<double>(times.on_common_clock(end) - end), 3000, 100);
  EXPECT_NEAR(static_cast<double>(times.on_common_clock((begin + end) / 2) - (begin + end) / 2), 2000, 200);
}

TEST(TimeBreakdown, RecordsSlicesThatNest) {
  TimeBreakdown times;
  times.phase(TimePart::other);
  EXPECT_EQ(times.trace(), nullptr);
  times.record(true);
  times.phase(TimePart::forward);
  { const TimeBreakdown::Scope backward(times, TimePart::backward); }
  times.phase(TimePart::other);
  times.record(false);
  const std::vector<TraceSlice> slices = times.slices();
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].name, "backward");
  EXPECT_EQ(slices[1].name, "train");
  EXPECT_LE(slices[1].from, slices[0].from);
  EXPECT_GE(slices[1].to, slices[0].to);
}

}  // namespace
}  // namespace convoy
