// Exit codes of `convoy run` and of rank processes, based on sysexits: one per kind of failure; 128 + n for signal n.
#pragma once
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/control/channel.h"

namespace convoy::exit_code {

inline constexpr int done = 0;
inline constexpr int pipelines_failed = 1;  // some independent pipelines failed
inline constexpr int differs = 1;           // `convoy verify`: results differ from the reference
inline constexpr int command_line = 64;
inline constexpr int corrupt_data = 65;
inline constexpr int device_missing = 69;
inline constexpr int training = 70;  // exception or NaN in training, or a defect of convoy
inline constexpr int out_of_memory = 71;
inline constexpr int output = 73;  // directory locked or unwritable
inline constexpr int io = 74;
inline constexpr int rendezvous = 75;
inline constexpr int disagreement = 76;
inline constexpr int refused = 77;  // for security
inline constexpr int config = 78;
inline constexpr int no_progress = 93;  // restarts make no progress
inline constexpr int hang = 110;
inline constexpr int peer_lost = 111;  // only for a rank process, never for the job (protocol::peer_lost_exit)
inline constexpr int cannot_execute = 126;
inline constexpr int not_found = 127;
inline constexpr int stopped = 143;  // stopped on request
inline constexpr int signal_base = 128;

}  // namespace convoy::exit_code

namespace convoy {

// All kinds of failure except `internal`, which has the exit code of `training`.
inline constexpr std::pair<Failure, int> exit_codes_of_failures[] = {
    {Failure::config, exit_code::config},
    {Failure::command_line, exit_code::command_line},
    {Failure::corrupt_data, exit_code::corrupt_data},
    {Failure::device_missing, exit_code::device_missing},
    {Failure::training, exit_code::training},
    {Failure::out_of_memory, exit_code::out_of_memory},
    {Failure::output, exit_code::output},
    {Failure::io, exit_code::io},
    {Failure::rendezvous, exit_code::rendezvous},
    {Failure::disagreement, exit_code::disagreement},
    {Failure::refused, exit_code::refused},
    {Failure::no_progress, exit_code::no_progress},
    {Failure::hang, exit_code::hang},
    {Failure::peer_lost, exit_code::peer_lost},
    {Failure::stopped, exit_code::stopped}};
static_assert(std::size(exit_codes_of_failures) == static_cast<size_t>(Failure::internal), "internal is the last kind");

inline int exit_code_of(Failure kind) {
  for (const auto& [failure, code] : exit_codes_of_failures)
    if (failure == kind) return code;
  return exit_code::training;
}

inline int exit_code_of(const Abort& abort) {
  const bool by_signal = abort.signal > 0 && abort.kind != Failure::out_of_memory;
  return by_signal ? exit_code::signal_base + abort.signal : exit_code_of(abort.kind);
}

// Returns the kind of failure for an exit code of a rank process; `training` for an unknown code.
inline Failure failure_of_exit(int code) {
  for (const auto& [failure, failure_code] : exit_codes_of_failures)
    if (failure_code == code) return failure;
  return Failure::training;
}

}  // namespace convoy
