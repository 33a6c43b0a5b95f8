// Schedules as plain data: which forwards and backwards each rank does in a step, in which order. Without LibTorch.
//
// A model is cut into stages 0 … S−1, and a step into micro-batches; each stage belongs to a rank, or to a device of one.
// Whoever executes a list does its actions in order and waits for what an action needs: the forward of stage s and
// micro-batch j for that of stage s−1, the backward of s for its own forward and the backward of s+1. Messages follow from
// the lists (`messages`), so that a schedule can be printed and examined without running it.
//
// gpipe        all forwards, then all backwards (Huang et al., 2019): m live micro-batches on every rank.
// 1f1b         backwards as soon as they can (PipeDream-Flush; Narayanan et al., 2021): at most p − rank live ones.
// interleaved  the same with v stages a rank, round robin, which divides the bubble by v (ibid.).
// placed       for any placement of stages: whoever is free takes what is ready, backwards first, with at most S − s live
//              micro-batches of stage s. Where each rank has one stage this is 1f1b.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace convoy {

struct Action {
  enum class Kind { forward, backward } kind = Kind::forward;
  int stage = 0;
  int micro = 0;  // number of the micro-batch
};
bool operator==(const Action& a, const Action& b);

struct StepSchedule {
  std::vector<int> rank_of;                  // of each stage
  std::vector<std::vector<Action>> actions;  // of each rank
  int stages() const { return static_cast<int>(rank_of.size()); }
  int ranks() const { return static_cast<int>(actions.size()); }
};

// Stages of `ranks` ranks with `chunks` each: stage s on rank s mod ranks.
std::vector<int> round_robin(int ranks, int chunks);

StepSchedule gpipe(const std::vector<int>& rank_of, int micro);
StepSchedule one_forward_one_backward(int ranks, int micro);
StepSchedule interleaved(int ranks, int chunks, int micro);
StepSchedule placed_schedule(const std::vector<int>& rank_of, int micro);
// By name: gpipe, 1f1b, interleaved. The first two want one chunk.
StepSchedule schedule_named(const std::string& name, int ranks, int chunks, int micro);
// No backward: evaluation.
StepSchedule forward_only(const std::vector<int>& rank_of, int micro);

// "rank 0: F0.0 F0.1 B0.0 …", a line a rank: kind, stage, micro-batch.
// A line for each rank; `names`: by rank, instead of "rank 0", ….
std::string to_text(const StepSchedule& schedule, const std::vector<std::string>& names = {});

// One boundary crossed: activations that are inputs of `stage` (after a forward), or gradients of its outputs.
struct Message {
  Action::Kind kind = Action::Kind::forward;
  int stage = 0;  // the receiving one
  int micro = 0;
};
// What rank `from` sends to rank `to`, in the order of sending.
std::vector<Message> messages(const StepSchedule& schedule, int from, int to);

// How long actions take, for examine.
struct Durations {
  double forward = 1;
  double backward = 2;
  std::vector<double> of_stage = {};  // times so much; empty: all alike
};

struct ScheduleReport {
  std::string problem;    // why it cannot be executed, or is no schedule of that step; "" when it can
  std::vector<int> live;  // by rank: most micro-batches × stages at once whose backward is still to come
  double span = 0;        // from the first action to the last's end
  double bubble = 0;      // share of ranks × span in which nothing is done
};
// What a stage keeps of a micro-batch from its forward to its backward, and the most that it holds beside while that goes on.
struct StageBytes {
  double kept = 0, working = 0;
};
// The most that one rank's actions hold at once: stages differ, and so do micro-batches.
double most_held(const std::vector<Action>& actions, const std::function<StageBytes(const Action&)>& bytes);

// Executes the lists on paper. `backward`: false for lists of forwards alone.
ScheduleReport examine(const StepSchedule& schedule, int micro, const Durations& durations = {}, bool backward = true);

}  // namespace convoy
