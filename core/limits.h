// What cgroups (versions 1 and 2) allow this process, and what the host has left, read from /proc and /sys.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace convoy {

struct Limits {
  std::optional<double> cores;    // CPU time per time: 1.5 is one core and a half
  std::optional<int64_t> memory;  // bytes
  std::optional<int64_t> memory_left =
      {};                               // of a limit, what its group has not taken; files that can be read again aside
  std::optional<int64_t> threads = {};  // processes and threads
};
// The tightest limit of the process's groups and their ancestors. `root` stands before /proc and /sys, for tests.
Limits cgroup_limits(const std::string& root = "");
// Bytes that processes of this host may still take, within the limit; none where that cannot be known.
std::optional<int64_t> memory_left(const std::string& root = "");

// How many processes of this process's group the kernel has killed for want of memory; -1 where it does not count them.
int64_t memory_kills(const std::string& root = "");

// CPU time of all threads of this process so far, in seconds.
double process_cpu_seconds();

// For messages: what this process lacks, the limits on it, and what to do.
std::string no_memory_text(const std::string& root = "");
std::string no_thread_text(const std::string& root = "");

}  // namespace convoy
