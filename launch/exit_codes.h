// Exit codes of `convoy run` and of rank processes, after sysexits. Each kind of failure has one; a signal n is 128 + n.
#pragma once
#include "core/control/channel.h"
#include "core/error.h"

namespace convoy::exit_code {

inline constexpr int done = 0;
inline constexpr int pipelines_failed = 1;  // some independent pipelines failed
inline constexpr int differs = 1;           // `convoy verify`: the strategy's results are not those of the reference
inline constexpr int command_line = 64;
inline constexpr int corrupt_data = 65;
inline constexpr int device_missing = 69;
inline constexpr int training = 70;  // exception or NaN in training, or a defect of ours
inline constexpr int out_of_memory = 71;
inline constexpr int output = 73;  // directory locked or unwritable
inline constexpr int io = 74;
inline constexpr int rendezvous = 75;
inline constexpr int disagreement = 76;
inline constexpr int refused = 77;  // for security
inline constexpr int config = 78;
inline constexpr int no_progress = 93;  // restarts do not help
inline constexpr int hang = 110;
inline constexpr int peer_lost = 111;  // of a rank process only, never the job's (protocol::peer_lost_exit)
inline constexpr int cannot_execute = 126;
inline constexpr int not_found = 127;
inline constexpr int stopped = 143;  // asked to stop
inline constexpr int signal_base = 128;

}  // namespace convoy::exit_code

namespace convoy {

inline int exit_code_of(Failure kind) {
  switch (kind) {
    case Failure::config:
      return exit_code::config;
    case Failure::command_line:
      return exit_code::command_line;
    case Failure::corrupt_data:
      return exit_code::corrupt_data;
    case Failure::device_missing:
      return exit_code::device_missing;
    case Failure::training:
      return exit_code::training;
    case Failure::out_of_memory:
      return exit_code::out_of_memory;
    case Failure::output:
      return exit_code::output;
    case Failure::io:
      return exit_code::io;
    case Failure::rendezvous:
      return exit_code::rendezvous;
    case Failure::disagreement:
      return exit_code::disagreement;
    case Failure::refused:
      return exit_code::refused;
    case Failure::no_progress:
      return exit_code::no_progress;
    case Failure::hang:
      return exit_code::hang;
    case Failure::peer_lost:
      return exit_code::peer_lost;
    case Failure::stopped:
      return exit_code::stopped;
    case Failure::internal:
      return exit_code::training;
  }
  return exit_code::training;
}

inline int exit_code_of(const Abort& abort) {
  const bool by_signal = abort.signal > 0 && abort.kind != Failure::out_of_memory;
  return by_signal ? exit_code::signal_base + abort.signal : exit_code_of(abort.kind);
}

// The kind of failure that a rank process's exit code stands for; `training` for a code that is none of ours.
inline Failure failure_of_exit(int code) {
  for (Failure kind :
       {Failure::config, Failure::command_line, Failure::corrupt_data, Failure::device_missing, Failure::training,
        Failure::out_of_memory, Failure::output, Failure::io, Failure::rendezvous, Failure::disagreement,
        Failure::refused, Failure::no_progress, Failure::hang, Failure::peer_lost, Failure::stopped})
    if (exit_code_of(kind) == code) return kind;
  return Failure::training;
}

}  // namespace convoy
