#include "strategies/plans/schedule.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/base/error.h"

namespace convoy {
namespace {

using Kind = Action::Kind;

int ranks_of(const std::vector<int>& rank_of) {
  CONVOY_CHECK(!rank_of.empty(), "a schedule without stages");
  return 1 + *std::max_element(rank_of.begin(), rank_of.end());
}

// End times of actions by kind, stage and micro-batch; negative: not finished.
class Progress {
 public:
  Progress(int stages, int micro) : stages_(stages), micro_(micro), ends_(2 * size_t(stages * micro), -1.0) {}

  double& end(const Action& action) {
    const int kind = action.kind == Kind::forward ? 0 : 1;
    return ends_[size_t((kind * stages_ + action.stage) * micro_ + action.micro)];
  }
  bool done(const Action& action) { return end(action) >= 0; }

  // The time when all inputs of the action exist; none if an input is missing.
  std::optional<double> ready(const Action& action) {
    double at = 0;
    const auto exists = [&](const Action& need) {
      at = std::max(at, end(need));
      return done(need);
    };
    const bool all =
        action.kind == Kind::forward
            ? action.stage == 0 || exists({Kind::forward, action.stage - 1, action.micro})
            : exists({Kind::forward, action.stage, action.micro}) &&
                  (action.stage + 1 == stages_ || exists({Kind::backward, action.stage + 1, action.micro}));
    return all ? std::optional<double>(at) : std::nullopt;
  }

 private:
  int stages_, micro_;
  std::vector<double> ends_;
};

// Forwards of one rank in groups of as many micro-batches as ranks. A group passes all stages of the rank before the
// next group begins.
std::vector<Action> grouped_forwards(const std::vector<int>& rank_of, int rank, int micro) {
  const int group = ranks_of(rank_of);
  std::vector<Action> all;
  for (int first = 0; first < micro; first += group)
    for (int stage = 0; stage < int(rank_of.size()); ++stage)
      for (int j = first; j < std::min(first + group, micro) && rank_of[size_t(stage)] == rank; ++j)
        all.push_back({Kind::forward, stage, j});
  return all;
}

std::string name_of(const Action& action) {
  return str(action.kind == Kind::forward ? "F" : "B", action.stage, ".", action.micro);
}

// Actions of one rank of `interleaved`, for a number of micro-batches that the ranks divide.
std::vector<Action> interleaved_rank(int ranks, int virtual_stages, int rank, int micro) {
  const std::vector<Action> forwards = grouped_forwards(round_robin(ranks, virtual_stages), rank, micro);
  std::vector<Action> backwards = forwards;
  for (Action& action : backwards)
    action = {Kind::backward, ((virtual_stages - 1) * ranks + rank) - (action.stage - rank), action.micro};
  const size_t all = forwards.size();
  const size_t ahead = std::min(all, size_t((ranks - 1 - rank) * 2 + (virtual_stages - 1) * ranks));
  std::vector<Action> actions(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (size_t i = 0; i < all; ++i) {
    if (ahead + i < all) actions.push_back(forwards[ahead + i]);
    actions.push_back(backwards[i]);
  }
  return actions;
}

// Chooses the next action of `placed_schedule`: the one that can begin first; on a tie backwards before forwards, then
// older micro-batches, then later stages.
class Chooser {
 public:
  Chooser(const std::vector<int>& rank_of, int micro)
      : rank_of_(rank_of),
        stages_(int(rank_of.size())),
        micro_(micro),
        progress_(stages_, micro),
        free_(size_t(ranks_of(rank_of)), 0.0),
        next_(2, std::vector<int>(rank_of.size(), 0)) {}

  Action next() {
    std::optional<Choice> best;
    for (int stage = 0; stage < stages_; ++stage)
      for (const Kind kind : {Kind::backward, Kind::forward})
        if (const auto choice = choice_of(kind, stage); choice && (!best || key(*choice) < key(*best))) best = choice;
    CONVOY_CHECK(best.has_value(), "nothing can be done next with ", stages_, " stages of ", micro_, " micro-batches");
    const Action& action = best->action;
    const double end = best->begin + (action.kind == Kind::forward ? Durations().forward : Durations().backward);
    progress_.end(action) = free_[rank(action.stage)] = end;
    ++next_[index(action.kind)][size_t(action.stage)];
    return action;
  }

 private:
  struct Choice {
    double begin;
    Action action;
  };
  static std::tuple<double, int, int, int> key(const Choice& choice) {
    return {choice.begin, choice.action.kind == Kind::backward ? 0 : 1, choice.action.micro, -choice.action.stage};
  }
  static size_t index(Kind kind) { return kind == Kind::forward ? 0 : 1; }
  size_t rank(int stage) const { return size_t(rank_of_[size_t(stage)]); }

  std::optional<Choice> choice_of(Kind kind, int stage) {
    const auto at = size_t(stage);
    const Action action{kind, stage, next_[index(kind)][at]};
    if (action.micro == micro_) return std::nullopt;
    if (kind == Kind::forward && action.micro - next_[1][at] >= stages_ - stage) return std::nullopt;
    const std::optional<double> ready = progress_.ready(action);
    if (!ready) return std::nullopt;
    return Choice{std::max(*ready, free_[rank(stage)]), action};
  }

  const std::vector<int>& rank_of_;
  int stages_, micro_;
  Progress progress_;
  std::vector<double> free_;            // by rank: time when its last action ends
  std::vector<std::vector<int>> next_;  // by kind (forward, backward) and stage: next micro-batch
};

// Returns the first error of the schedule that shows without execution; "" if there is none.
std::string malformed(const StepSchedule& schedule, int micro, bool backward) {
  const int stages = schedule.stages();
  std::vector<std::vector<int>> next(2, std::vector<int>(size_t(stages), 0));
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Action& action : schedule.actions[size_t(rank)]) {
      if (action.stage < 0 || action.stage >= stages || schedule.rank_of[size_t(action.stage)] != rank)
        return str("rank ", rank, " has ", name_of(action), ", which is not of its stages");
      int& expected = next[action.kind == Kind::forward ? 0 : 1][size_t(action.stage)];
      if (action.micro != expected++)
        return str("rank ", rank, " has ", name_of(action), " where micro-batch ", expected - 1, " is next");
    }
  }
  for (size_t stage = 0; stage < size_t(stages); ++stage) {
    if (next[0][stage] != micro) return str("stage ", stage, " has ", next[0][stage], " forwards of ", micro);
    if (next[1][stage] != (backward ? micro : 0)) return str("stage ", stage, " has ", next[1][stage], " backwards");
  }
  return "";
}

}  // namespace

std::vector<int> round_robin(int ranks, int virtual_stages) {
  CONVOY_CHECK(ranks > 0 && virtual_stages > 0, ranks, " ranks with ", virtual_stages, " virtual stages");
  std::vector<int> rank_of;
  for (int stage = 0; stage < ranks * virtual_stages; ++stage) rank_of.push_back(stage % ranks);
  return rank_of;
}

StepSchedule gpipe(const std::vector<int>& rank_of, int micro) {
  StepSchedule schedule = forward_only(rank_of, micro);
  for (int stage = schedule.stages() - 1; stage >= 0; --stage)
    for (int j = 0; j < micro; ++j)
      schedule.actions[size_t(rank_of[size_t(stage)])].push_back({Kind::backward, stage, j});
  return schedule;
}

StepSchedule one_forward_one_backward(int ranks, int micro) {
  StepSchedule schedule{round_robin(ranks, 1), {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const int ahead = std::min(micro, ranks - 1 - rank);
    std::vector<Action> actions;
    for (int j = 0; j < ahead; ++j) actions.push_back({Kind::forward, rank, j});
    for (int j = 0; j < micro; ++j) {
      if (ahead + j < micro) actions.push_back({Kind::forward, rank, ahead + j});
      actions.push_back({Kind::backward, rank, j});
    }
    schedule.actions.push_back(std::move(actions));
  }
  return schedule;
}

StepSchedule interleaved(int ranks, int virtual_stages, int micro) {
  StepSchedule schedule{round_robin(ranks, virtual_stages), {}};
  // The order is for whole groups of micro-batches, one per rank. Actions of a partial last group keep their order.
  // Removing actions from executable lists leaves executable lists.
  const int whole = (micro + ranks - 1) / ranks * ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action> actions = interleaved_rank(ranks, virtual_stages, rank, whole);
    actions.erase(
        std::remove_if(actions.begin(), actions.end(), [&](const Action& action) { return action.micro >= micro; }),
        actions.end());
    schedule.actions.push_back(std::move(actions));
  }
  return schedule;
}

StepSchedule placed_schedule(const std::vector<int>& rank_of, int micro) {
  StepSchedule schedule{rank_of, std::vector<std::vector<Action>>(size_t(ranks_of(rank_of)))};
  Chooser chooser(rank_of, micro);
  for (int64_t left = 2 * int64_t(rank_of.size()) * micro; left > 0; --left) {
    const Action action = chooser.next();
    schedule.actions[size_t(rank_of[size_t(action.stage)])].push_back(action);
  }
  return schedule;
}

StepSchedule schedule_of(ScheduleKind kind, int ranks, int virtual_stages, int micro) {
  if (kind == ScheduleKind::interleaved) return interleaved(ranks, virtual_stages, micro);
  CONVOY_CHECK(virtual_stages == 1, virtual_stages, " virtual stages per rank need the schedule interleaved");
  return kind == ScheduleKind::gpipe ? gpipe(round_robin(ranks, 1), micro) : one_forward_one_backward(ranks, micro);
}

StepSchedule forward_only(const std::vector<int>& rank_of, int micro) {
  StepSchedule schedule{rank_of, {}};
  for (int rank = 0; rank < ranks_of(rank_of); ++rank)
    schedule.actions.push_back(grouped_forwards(rank_of, rank, micro));
  return schedule;
}

std::string to_text(const StepSchedule& schedule, const std::vector<std::string>& names) {
  std::string text;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    text += (names.empty() ? str("rank ", rank) : names[size_t(rank)]) + ":";
    for (const Action& action : schedule.actions[size_t(rank)]) text += " " + name_of(action);
    text += "\n";
  }
  return text;
}

std::vector<Message> messages(const StepSchedule& schedule, int from, int to) {
  std::vector<Message> all;
  for (const Action& action : schedule.actions[size_t(from)]) {
    const int next = action.kind == Kind::forward ? action.stage + 1 : action.stage - 1;
    if (next < 0 || next >= schedule.stages() || schedule.rank_of[size_t(next)] != to) continue;
    all.push_back({action.kind, next, action.micro});
  }
  return all;
}

double most_held(const std::vector<Action>& actions, const std::function<KeptBytes(const Action&)>& bytes) {
  double held = 0, most = 0;
  for (const Action& action : actions) {
    const KeptBytes one = bytes(action);
    if (action.kind == Kind::forward) held += one.kept;
    most = std::max(most, held + (action.kind == Kind::backward ? one.largest : 0));
    if (action.kind == Kind::backward) held -= one.kept;
  }
  return most;
}

ScheduleReport examine(const StepSchedule& schedule, int micro, const Durations& durations, bool backward) {
  ScheduleReport report;
  report.problem = malformed(schedule, micro, backward);
  if (!report.problem.empty()) return report;
  const auto ranks = size_t(schedule.ranks());
  Progress progress(schedule.stages(), micro);
  std::vector<size_t> next(ranks, 0);
  std::vector<double> free(ranks, 0.0);
  std::vector<int> live(ranks, 0);
  report.live.assign(ranks, 0);
  double busy = 0;
  // Forwards depend on lower ranks and backwards on higher ones, so sweeps alternate their direction.
  bool up = false;
  for (bool moved = true; moved;) {
    moved = false;
    up = !up;
    for (size_t i = 0; i < ranks; ++i) {
      const size_t rank = up ? i : ranks - 1 - i;
      const std::vector<Action>& actions = schedule.actions[rank];
      for (; next[rank] < actions.size(); ++next[rank], moved = true) {
        const Action& action = actions[next[rank]];
        const std::optional<double> ready = progress.ready(action);
        if (!ready) break;
        const double takes = (action.kind == Kind::forward ? durations.forward : durations.backward) *
                             (durations.of_stage.empty() ? 1 : durations.of_stage[size_t(action.stage)]);
        free[rank] = progress.end(action) = std::max(*ready, free[rank]) + takes;
        busy += takes;
        live[rank] += action.kind == Kind::forward ? 1 : -1;
        report.live[rank] = std::max(report.live[rank], live[rank]);
      }
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (next[rank] < schedule.actions[rank].size())
      report.problem += str(report.problem.empty() ? "" : ", ", "rank ", rank, " waits at ",
                            name_of(schedule.actions[rank][next[rank]]), " for ever");
    report.span = std::max(report.span, free[rank]);
  }
  if (report.span > 0) report.bubble = 1 - busy / (double(ranks) * report.span);
  return report;
}

}  // namespace convoy
