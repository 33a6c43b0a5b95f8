#include "backends/communicator/completion.h"

#include <gtest/gtest.h>

#include <atomic>

namespace convoy {
namespace {

using std::chrono::milliseconds;

template <class Condition>
bool within(milliseconds limit, Condition condition) {
  const auto end = Clock::now() + limit;
  while (!condition() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(5));
  return condition();
}

TEST(DeadlineWatch, ReportsLateWorkOnceAndNoOther) {
  std::atomic<int> late{0}, wrongly_late{0}, asked{0};
  std::atomic<bool> ended{false};
  DeadlineWatch watch;
  const auto start = Clock::now();
  watch.follow([&] { return ended.load(); }, start + milliseconds(100), [&] { ++wrongly_late; });
  watch.follow([] { return false; }, start + milliseconds(100), [&] { ++late; });
  watch.follow(
      [&] {
        ++asked;
        return true;
      },
      start - milliseconds(1), [&] { ++wrongly_late; });
  ended = true;
  EXPECT_TRUE(within(milliseconds(5000), [&] { return late == 1; }));
  EXPECT_GE(Clock::now() - start, milliseconds(100));
  std::this_thread::sleep_for(milliseconds(150));
  EXPECT_EQ(late, 1);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(wrongly_late, 0);
  // It sleeps now, and wakes for the next one.
  watch.follow([] { return false; }, Clock::now(), [&] { ++late; });
  EXPECT_TRUE(within(milliseconds(5000), [&] { return late == 2; }));
}

TEST(DeadlineWatch, TreatsAFailedQueryAsLate) {
  std::atomic<int> late{0};
  DeadlineWatch watch;
  watch.follow([]() -> bool { throw std::runtime_error("the device is gone"); }, Clock::now() + std::chrono::hours(1),
               [&] { ++late; });
  EXPECT_TRUE(within(milliseconds(5000), [&] { return late == 1; }));
}

TEST(DeadlineWatch, EndsWhileWorkIsRunning) {
  // A busy machine may need a second or third try.
  Clock::duration took = std::chrono::hours(1);
  for (int tries = 0; tries < 3 && took >= milliseconds(1000); ++tries) {
    std::atomic<bool> started{false};
    auto watch = std::make_unique<DeadlineWatch>([&] { started = true; });
    watch->follow([] { return false; }, Clock::now() + std::chrono::hours(1), [] { FAIL(); });
    EXPECT_TRUE(within(milliseconds(5000), [&] { return started.load(); }));
    const auto start = Clock::now();
    watch.reset();
    took = Clock::now() - start;
  }
  EXPECT_LT(took, milliseconds(1000));
}

}  // namespace
}  // namespace convoy
