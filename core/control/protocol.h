// What `convoy` and the rank processes say to each other over the control channel. Without LibTorch.
//
// Environment of a rank process: CONVOY_CHANNEL (to_string(ChannelAddress)), CONVOY_PROCESS (index into Job::processes),
// CONVOY_RANK (its first rank, the participant as which it connects; `convoy` processes of that rank connect as -1 - rank).
// Everything else comes over the channel, so that it is the same under every launcher.
#pragma once

namespace convoy::protocol {

// Keys (Channel::set / get).
inline constexpr char job[] = "job";          // JSON {job: to_json(Job), folder, attempt, started (unix seconds)}
inline constexpr char data[] = "data";        // agreed on, JSON {first, fingerprint, host, numbers} of each process
inline constexpr char rank_info[] = "rank/";  // + rank: JSON {host, pid, device, cores, threads}, as read back
inline constexpr char rank_result[] =
    "result/";  // + rank: JSON {wait_seconds, cpu_efficiency, bytes_sent_per_step, data_*…}
inline constexpr char result[] = "result";              // JSON: rank 0's part of summary.json
inline constexpr char stopped_early[] = "stopped";      // in the result: true where the ranks stopped as asked
inline constexpr char stop_request[] = "stop/request";  // set by whoever serves when all are to stop
inline constexpr char stop_at[] = "stop/at/";           // + rank: the step before which it holds

// Topics (Channel::post).
inline constexpr char progress[] = "progress";  // JSON of a Record plus {steps, epochs}: rank 0, a few times a second
inline constexpr char metrics[] = "metrics";    // JSON of a Record: rank 0, at each evaluation
inline constexpr char log_line[] = "log";       // JSON {rank, host, line}
inline constexpr char first_step[] = "first_step";  // JSON {seconds}: rank 0, when the first step is done

// Exit code of a rank process that only lost a peer; never the job's (launch/exit_codes.h).
inline constexpr int peer_lost_exit = 111;

}  // namespace convoy::protocol
