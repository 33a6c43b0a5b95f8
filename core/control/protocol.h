// Protocol: keys and topics that `convoy` and the rank processes use on the control channel. Without LibTorch.
//
// Environment of a rank process: CONVOY_CHANNEL (to_string(ChannelAddress)), CONVOY_PROCESS (index into
// Job::processes), CONVOY_RANK (its first rank; it connects as this participant, and `convoy` processes of that rank
// as -1 - rank).
// All other data comes over the channel, so that every launcher works in the same way.
#pragma once

#include "core/control/channel.h"

namespace convoy::protocol {

// Keys (Channel::set / get).
inline constexpr char job[] = "job";    // JSON {job: to_json(Job), folder, attempt, started (unix seconds)}
inline constexpr char data[] = "data";  // agreement: JSON {first, fingerprint, host, numbers} of each process
inline constexpr char rank_info[] =
    "rank/";  // + rank: JSON {host, pid, device, cores, threads}, as the kernel reports them
inline constexpr char rank_result[] =
    "result/";  // + rank: JSON {wait_seconds, cpu_efficiency, bytes_sent_per_step, data_*…}
inline constexpr char result[] = "result";              // JSON: the part of summary.json that rank 0 makes
inline constexpr char stopped_early[] = "stopped";      // in the result: true if the ranks stopped on request
inline constexpr char stop_request[] = "stop/request";  // set by the supervisor when all ranks should stop
inline constexpr char stop_at[] = "stop/at/";           // + rank: the step before which the rank holds

// Topics (Channel::post).
inline constexpr char progress[] = "progress";  // JSON of a Record plus {steps, epochs}: rank 0, a few times a second
inline constexpr char metrics[] = "metrics";    // JSON of a Record: rank 0, at each evaluation
inline constexpr char log_line[] = "log";       // JSON {rank, host, line}
inline constexpr char first_step[] = "first_step";  // JSON {seconds}: rank 0, when the first step is done

// Exit code of a rank process that only lost a peer; never the job's (launch/process/exit_codes.h).
inline constexpr int peer_lost_exit = 111;

}  // namespace convoy::protocol

namespace convoy {

// --- Fault injection (core/inject) ---

// Stops all sending of this client, heartbeats included, as if the network of its host failed in one direction; it
// still receives.
void mute(Channel& channel);

}  // namespace convoy
