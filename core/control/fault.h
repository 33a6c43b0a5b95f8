// Faults that a user injects with `--inject`, to test how a job recovers: the kind, the rank, the time. Without
// LibTorch.
//
//   FAULT[:VALUE][:SETTING…][@POINT]     kill:rank=2@step=50   sleep:5s   enospc:fsync@save=2   throw:block=0:always
//
// FAULT     kill | stop | throw | exit | segv | sleep | loop | nan | mismatch | enospc | drop-heartbeat | cut-network |
//           orphan
// SETTING   rank=N | rank=last | rank=all (default 0) · block=N · attempt=N | always (default attempt 0)
// POINT     join | epoch=N | step=N | collective=N | evaluate[=N] | save[=N]; default step=1, for enospc save=1
// docs/debugging.md describes each. Failure: Error(command_line) with the nearest valid word.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

// Points in a rank's run. Numbers are those of messages: steps from 0, epochs from 1. Evaluations and saves are counted
// from 1 in each process.
enum class InjectPoint {
  join,        // has reported its position, and has not joined its peers
  epoch,       // before the first step of an epoch
  step,        // before a step
  collective,  // at the first wait for a collective in that step or later
  evaluate,    // before an evaluation
  save         // before a checkpoint
};

struct Fault {
  enum class Kind {
    kill,
    stop,
    raise,
    exit,
    segv,
    sleep,
    loop,
    nan,
    mismatch,
    enospc,
    drop_heartbeat,
    cut_network,
    orphan
  };
  // The property of a collective or of the parameters that differs, or the file operation that fails.
  enum class Detail { none, shape, dtype, operation, parameters, write, fsync, close };
  static constexpr int last_rank = -1, all_ranks = -2, all_attempts = -1;

  std::string text;  // text that the user wrote
  Kind kind = Kind::kill;
  Detail detail = Detail::none;
  double seconds = 0;  // duration of sleep, or of the cut; 0: the network stays cut
  int code = 0;        // code of exit
  int rank = 0;        // rank, last_rank or all_ranks
  int64_t block = -1;  // acts in the forward pass of this block; -1: outside the model
  int attempt = 0;     // number as in summary.json, or all_attempts
  InjectPoint point = InjectPoint::step;
  int64_t number = 1;

  bool concerns(int rank, int size, int attempt) const;
};

// Topic (Channel::post) of a fault that is injected now: {fault, rank, host, step, seconds (unix time)}.
inline constexpr char injected_topic[] = "injected";

Fault fault_from_text(const std::string& text);
// Parses all of them, for a job of `ranks`; 0: number unknown.
std::vector<Fault> faults_from_texts(const std::vector<std::string>& texts, int ranks = 0);
// Refuses faults in a model's blocks: a program of the user has a model that convoy does not decorate.
void check_faults_of_program(const std::vector<Fault>& faults);

}  // namespace convoy
