// Pipeline schedules as plain data: the forwards and backwards of each rank in a step, in order. Without LibTorch.
//
// A model has stages 0 … S−1 and a step has micro-batches. Each stage belongs to a rank, or to a device of a rank. A
// rank executes its list in order. The forward of stage s waits for the forward of stage s−1 of the same micro-batch.
// The backward of stage s waits for its forward and the backward of stage s+1. `messages` derives sends and receives
// from the lists, so a schedule can be printed and examined without running it.
//
//   gpipe        all forwards, then all backwards (Huang et al., 2019): m live micro-batches on every rank.
//   1f1b         each backward as early as possible (PipeDream-Flush; Narayanan et al., 2021): at most p − rank live
//                micro-batches.
//   interleaved  like 1f1b, with v virtual stages per rank, round robin, which divides the bubble by v (ibid.).
//   placed       any placement of stages: a free rank starts a ready action, backwards first, with at most S − s live
//                micro-batches of stage s. With one stage per rank this is 1f1b.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace convoy {

struct Action {
  enum class Kind { forward, backward } kind = Kind::forward;
  int stage = 0;
  int micro = 0;  // index of the micro-batch
};

struct StepSchedule {
  std::vector<int> rank_of;                  // rank of each stage
  std::vector<std::vector<Action>> actions;  // actions of each rank
  int stages() const { return int(rank_of.size()); }
  int ranks() const { return int(actions.size()); }
};

// Returns the ranks of stages if each of `ranks` ranks has `virtual_stages` virtual stages: stage s is on rank s mod
// ranks.
std::vector<int> round_robin(int ranks, int virtual_stages);

StepSchedule gpipe(const std::vector<int>& rank_of, int micro);
StepSchedule one_forward_one_backward(int ranks, int micro);
StepSchedule interleaved(int ranks, int virtual_stages, int micro);
StepSchedule placed_schedule(const std::vector<int>& rank_of, int micro);
// Schedules of the option `schedule`. All but `interleaved` require one virtual stage per rank.
enum class ScheduleKind { gpipe, one_forward_one_backward, interleaved };
StepSchedule schedule_of(ScheduleKind kind, int ranks, int virtual_stages, int micro);
// Returns the schedule of an evaluation: no backward.
StepSchedule forward_only(const std::vector<int>& rank_of, int micro);

// Returns one line per rank: "rank 0: F0.0 F0.1 B0.0 …" (kind, stage, micro-batch). `names` replaces "rank 0", ….
std::string to_text(const StepSchedule& schedule, const std::vector<std::string>& names = {});

// Crossing of a boundary: activations that are inputs of `stage` (forward), or gradients of its outputs (backward).
struct Message {
  Action::Kind kind = Action::Kind::forward;
  int stage = 0;  // receiving stage
  int micro = 0;
};
// Returns messages from rank `from` to rank `to`, in the order of sending.
std::vector<Message> messages(const StepSchedule& schedule, int from, int to);

// Durations of actions, for `examine`.
struct Durations {
  double forward = 1;
  double backward = 2;
  std::vector<double> of_stage = {};  // factor for each stage; empty: all are 1
};

struct ScheduleReport {
  std::string problem;    // why the schedule is invalid or cannot be executed; "" if it can
  std::vector<int> live;  // by rank: peak number of forwards (micro-batch and stage) without their backward
  double span = 0;        // from the start of the first action to the end of the last
  double bubble = 0;      // idle share of ranks × span
};
// Activation bytes of a stage for a micro-batch.
struct KeptBytes {
  double kept = 0;     // bytes from a forward to its backward
  double largest = 0;  // additional peak during a backward: its tensors, and those of a checkpointed block
};
// Returns the peak bytes of one rank's actions. Stages and micro-batches may differ in size.
double most_held(const std::vector<Action>& actions, const std::function<KeptBytes(const Action&)>& bytes);

// Simulates the lists. `backward` is false for lists with forwards only.
ScheduleReport examine(const StepSchedule& schedule, int micro, const Durations& durations = {}, bool backward = true);

}  // namespace convoy
