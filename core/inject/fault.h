// Faults that a user orders by `--inject`, to try how a job of his own recovers: which, on which rank, when. Without LibTorch.
//
//   FAULT[:VALUE][:SETTING…][@POINT]     kill:rank=2@step=50   sleep:5s   enospc:fsync@save=2   throw:block=0:always
//
// FAULT     kill | stop | throw | exit | segv | sleep | loop | nan | mismatch | enospc | drop-heartbeat | orphan
// SETTING   rank=N | rank=last | rank=all (0 when not said) · block=N · attempt=N | always (attempt 0 when not said)
// POINT     join | epoch=N | step=N | collective=N | evaluate[=N] | save[=N]; when not said: step=1, of enospc save=1
// docs/debugging.md tells what each does. Failure: Error(command_line) with the nearest valid word.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

// Where a rank may be. Numbers are as messages name them: steps from 0, epochs from 1; evaluations and saves are counted
// from 1 in each process.
enum class InjectPoint {
  join,        // it has told where it is, and has not yet met its peers
  epoch,       // before the first step of an epoch
  step,        // before a step
  collective,  // in the first collective that it has to wait for in that step or later
  evaluate,    // before an evaluation
  save         // before a checkpoint
};

struct Fault {
  enum class Kind { kill, stop, raise, exit, segv, sleep, loop, nan, mismatch, enospc, drop_heartbeat, orphan };
  // What of a collective, or of the list of parameters, differs; which of a file's calls fails.
  enum class Part { none, shape, dtype, operation, parameters, write, fsync, close };
  static constexpr int last_rank = -1, all_ranks = -2, all_attempts = -1;

  std::string text;  // as it was written
  Kind kind = Kind::kill;
  Part part = Part::none;
  double seconds = 0;  // of sleep
  int code = 0;        // of exit
  int rank = 0;        // or last_rank, all_ranks
  int64_t block = -1;  // in the forward pass of this block of the model; -1: not in the model
  int attempt = 0;     // as summary.json counts them, or all_attempts
  InjectPoint point = InjectPoint::step;
  int64_t number = 1;

  bool concerns(int rank, int size, int attempt) const;
};

// Topic (Channel::post) of a fault that happens now: {fault, rank, host, step, seconds (unix time)}.
inline constexpr char injected_topic[] = "injected";

Fault fault_from_text(const std::string& text);
// All of them, each for a job of `ranks`; 0: not known yet.
std::vector<Fault> faults_from_texts(const std::vector<std::string>& texts, int ranks = 0);

}  // namespace convoy
