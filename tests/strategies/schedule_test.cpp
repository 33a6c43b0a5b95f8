// Schedules as data: their form, whether they can be executed, live micro-batches and bubbles.
#include "strategies/plans/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace convoy {
namespace {

using Kind = Action::Kind;

struct Size {
  int ranks, chunks, micro;
};

std::vector<Size> sizes() {
  std::vector<Size> all;
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int micro = 1; micro <= 8; ++micro) all.push_back({ranks, chunks, micro});
  return all;
}

std::string text_of(const Size& size) { return str(size.ranks, " ranks × ", size.chunks, ", ", size.micro, " micro"); }

// Executes with a FIFO channel between each pair of ranks: a receiver gets messages in the order of sending, and
// executes an action when its inputs have arrived. Returns true if all lists are executed.
bool executes_over_channels(const StepSchedule& schedule) {
  const int ranks = schedule.ranks();
  std::vector<size_t> next(static_cast<size_t>(ranks), 0);
  const auto done_by = [&](int rank, const Action& wanted) {
    const auto& actions = schedule.actions[static_cast<size_t>(rank)];
    const auto end = actions.begin() + static_cast<std::ptrdiff_t>(next[static_cast<size_t>(rank)]);
    return std::any_of(actions.begin(), end, [&](const Action& action) {
      return action.kind == wanted.kind && action.stage == wanted.stage && action.micro == wanted.micro;
    });
  };
  const auto arrived = [&](int from, int to, Kind kind, int stage, int micro) {
    if (from == to) return true;  // in the order of its list
    for (const Message& message : messages(schedule, from, to)) {
      const int sender = message.kind == Kind::forward ? message.stage - 1 : message.stage + 1;
      if (!done_by(from, {message.kind, sender, message.micro})) return false;  // and nothing after it
      if (message.kind == kind && message.stage == stage && message.micro == micro) return true;
    }
    return false;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) {
      auto& at = next[static_cast<size_t>(rank)];
      const auto& actions = schedule.actions[static_cast<size_t>(rank)];
      while (at < actions.size()) {
        const Action& action = actions[at];
        const int before = action.kind == Kind::forward ? action.stage - 1 : action.stage + 1;
        const bool boundary = before >= 0 && before < schedule.stages();
        if (boundary &&
            !arrived(schedule.rank_of[static_cast<size_t>(before)], rank, action.kind, action.stage, action.micro))
          break;
        ++at;
        moved = true;
      }
    }
  }
  for (int rank = 0; rank < ranks; ++rank)
    if (next[static_cast<size_t>(rank)] != schedule.actions[static_cast<size_t>(rank)].size()) return false;
  return true;
}

TEST(Schedule, MatchesThePrintedSchedule) {
  EXPECT_EQ(to_text(gpipe({0, 1}, 3)),
            "rank 0: F0.0 F0.1 F0.2 B0.0 B0.1 B0.2\n"
            "rank 1: F1.0 F1.1 F1.2 B1.0 B1.1 B1.2\n");
  EXPECT_EQ(to_text(one_forward_one_backward(3, 4)),
            "rank 0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3\n"
            "rank 1: F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3\n"
            "rank 2: F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3\n");
  EXPECT_EQ(to_text(interleaved(2, 2, 4)),
            "rank 0: F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3\n"
            "rank 1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3\n");
  EXPECT_EQ(to_text(forward_only(round_robin(2, 2), 3)),
            "rank 0: F0.0 F0.1 F2.0 F2.1 F0.2 F2.2\n"
            "rank 1: F1.0 F1.1 F3.0 F3.1 F1.2 F3.2\n");
}

TEST(Schedule, IsExecutableForEveryKind) {
  for (const Size& size : sizes()) {
    for (const auto kind : {ScheduleKind::gpipe, ScheduleKind::one_forward_one_backward, ScheduleKind::interleaved}) {
      if (size.chunks > 1 && kind != ScheduleKind::interleaved) continue;
      const StepSchedule schedule = schedule_of(kind, size.ranks, size.chunks, size.micro);
      EXPECT_EQ(examine(schedule, size.micro).problem, "") << text_of(size) << "\n" << to_text(schedule);
      EXPECT_TRUE(executes_over_channels(schedule)) << text_of(size) << "\n" << to_text(schedule);
    }
    const StepSchedule forwards = forward_only(round_robin(size.ranks, size.chunks), size.micro);
    EXPECT_EQ(examine(forwards, size.micro, {}, false).problem, "") << text_of(size);
    EXPECT_TRUE(executes_over_channels(forwards)) << text_of(size);
  }
}

TEST(Schedule, CountsLiveActivations) {
  for (const Size& size : sizes()) {
    const auto report = [&](ScheduleKind kind, int chunks) {
      return examine(schedule_of(kind, size.ranks, chunks, size.micro), size.micro);
    };
    for (int rank = 0; rank < size.ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      EXPECT_EQ(report(ScheduleKind::one_forward_one_backward, 1).live[at], std::min(size.micro, size.ranks - rank))
          << text_of(size);
      EXPECT_EQ(report(ScheduleKind::gpipe, 1).live[at], size.micro) << text_of(size);
      const int ahead = 2 * (size.ranks - 1 - rank) + (size.chunks - 1) * size.ranks + 1;
      EXPECT_LE(report(ScheduleKind::interleaved, size.chunks).live[at], std::min(ahead, size.micro * size.chunks))
          << text_of(size);
    }
  }
}

TEST(Schedule, BubbleFollowsTheFormula) {
  for (const Size& size : sizes()) {
    const double idle = size.ranks - 1, busy = size.micro;
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_forward_one_backward})
      EXPECT_NEAR(examine(schedule_of(kind, size.ranks, 1, size.micro), size.micro).bubble, idle / (busy + idle), 1e-12)
          << text_of(size);
    if (size.micro % size.ranks != 0) continue;
    const double chunk = 1.0 / size.chunks;
    const ScheduleReport report =
        examine(interleaved(size.ranks, size.chunks, size.micro), size.micro, {chunk, 2 * chunk});
    EXPECT_NEAR(report.span, 3 * (busy + idle * chunk), 1e-9) << text_of(size);
  }
}

TEST(Schedule, OneStagePerDeviceIsOneForwardOneBackward) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (int micro = 1; micro <= 8; ++micro)
      EXPECT_EQ(to_text(placed_schedule(round_robin(ranks, 1), micro)),
                to_text(one_forward_one_backward(ranks, micro)));
}

TEST(Schedule, IsExecutableForAnyPlacement) {
  for (const std::vector<int>& devices : std::vector<std::vector<int>>{
           {0}, {0, 0}, {0, 1, 0}, {1, 0}, {0, 1, 0, 1}, {0, 0, 1, 2}, {2, 1, 0, 1, 2}, {0, 1, 2, 0, 1, 2}}) {
    const auto stages = static_cast<int>(devices.size());
    for (int micro = 1; micro <= 8; ++micro) {
      const StepSchedule schedule = placed_schedule(devices, micro);
      const ScheduleReport report = examine(schedule, micro);
      EXPECT_EQ(report.problem, "") << to_text(schedule);
      EXPECT_TRUE(executes_over_channels(schedule)) << to_text(schedule);
      for (int device = 0; device < schedule.ranks(); ++device) {
        int bound = 0;
        for (int stage = 0; stage < stages; ++stage)
          if (devices[static_cast<size_t>(stage)] == device) bound += std::min(micro, stages - stage);
        EXPECT_LE(report.live[static_cast<size_t>(device)], bound) << to_text(schedule);
      }
    }
  }
  // With enough micro-batches both devices are busy nearly all the time.
  EXPECT_LT(examine(placed_schedule({0, 1}, 16), 16).bubble, 0.06);
}

TEST(Schedule, CheckFindsMistakes) {
  const auto problem = [](std::vector<int> rank_of, std::vector<std::vector<Action>> actions, int micro) {
    return examine({std::move(rank_of), std::move(actions)}, micro).problem;
  };
  const Action f0{Kind::forward, 0, 0}, f1{Kind::forward, 1, 0}, b0{Kind::backward, 0, 0}, b1{Kind::backward, 1, 0};
  EXPECT_EQ(problem({0, 1}, {{f0, b0}, {f1, b1}}, 1), "");
  EXPECT_EQ(problem({0, 1}, {{b0, f0}, {f1, b1}}, 1), "rank 0 waits at B0.0 for ever, rank 1 waits at F1.0 for ever");
  EXPECT_EQ(problem({0, 0}, {{f1, f0, b1, b0}}, 1), "rank 0 waits at F1.0 for ever");
  EXPECT_EQ(problem({0, 1}, {{f0, b0, b1}, {f1}}, 1), "rank 0 has B1.0, which is not of its stages");
  EXPECT_EQ(problem({0, 1}, {{f0, b0}, {f1}}, 1), "stage 1 has 0 backwards");
  EXPECT_EQ(problem({0, 1}, {{f0, f0, b0}, {f1, b1}}, 1), "rank 0 has F0.0 where micro-batch 1 is next");
  EXPECT_EQ(problem({0, 1}, {{f0, b0}, {f1, b1}}, 2), "stage 0 has 1 forwards of 2");
}

TEST(Schedule, BoundsLiveMicroBatches) {
  // Stage s keeps s + 1 of each micro-batch, and micro-batch 0 is twice as large; a backward needs ten more.
  const auto bytes = [](const Action& action) -> KeptBytes {
    return {(action.stage + 1.0) * (action.micro == 0 ? 2 : 1), 10};
  };
  const auto most = [&](const StepSchedule& schedule, size_t rank) { return most_held(schedule.actions[rank], bytes); };
  EXPECT_EQ(most(gpipe({0, 1}, 3), 0), 2 + 1 + 1 + 10);
  EXPECT_EQ(most(gpipe({0, 1}, 3), 1), 4 + 2 + 2 + 10);
  EXPECT_EQ(most(one_forward_one_backward(2, 3), 0), 2 + 1 + 10);
  EXPECT_EQ(most(one_forward_one_backward(2, 3), 1), 4 + 10);
  // Rank 0 has stages 0 and 2: F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1.
  EXPECT_EQ(most(interleaved(2, 2, 2), 0), 2 + 1 + 6 + 3 + 10);
}

TEST(Schedule, MessagesFollowTheActions) {
  const StepSchedule schedule = one_forward_one_backward(3, 2);
  std::string text;
  for (const Message& message : messages(schedule, 1, 0)) text += str("B", message.stage, ".", message.micro, " ");
  EXPECT_EQ(text, "B0.0 B0.1 ");
  EXPECT_EQ(messages(schedule, 1, 2).size(), 2u);
  EXPECT_TRUE(messages(schedule, 0, 2).empty());
  // Both directions between two ranks with two virtual stages each: activations and gradients in one stream.
  const std::vector<Message> down = messages(interleaved(2, 2, 2), 0, 1);
  EXPECT_EQ(std::count_if(down.begin(), down.end(), [](const Message& m) { return m.kind == Kind::forward; }), 4);
  EXPECT_EQ(std::count_if(down.begin(), down.end(), [](const Message& m) { return m.kind == Kind::backward; }), 2);
}

}  // namespace
}  // namespace convoy
