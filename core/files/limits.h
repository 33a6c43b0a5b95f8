// Limits of this process from cgroups (versions 1 and 2), free memory of the host, from /proc and /sys; and clocks.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"

namespace convoy {

struct Limits {
  std::optional<double> cores;              // CPU time per second: 1.5 means one and a half cores
  std::optional<int64_t> memory;            // bytes
  std::optional<int64_t> memory_left = {};  // rest of the limit; memory of files that can be read again counts as free
  std::optional<int64_t> threads = {};      // processes and threads
};
// Returns the tightest limits of this process's cgroups and their ancestors. `root`: prefix of /proc and /sys, for
// tests.
Limits cgroup_limits(const std::string& root = "");
// Returns the bytes that can still be used: the rest of the cgroups' limit, or the host's available memory if that is
// less; none if unknown.
std::optional<int64_t> memory_left(const std::string& root = "");

// A cgroup of this process. In a container the folder may exist on the host only.
struct OwnCgroup {
  std::string controllers;  // version 1: names between commas, as in "cpu,cpuacct"; version 2: ""
  std::string path;         // below the mount point of the controller or of version 2
  bool has(const std::string& controller) const;
};
std::vector<OwnCgroup> own_cgroups(const std::string& root = "");

// Returns how many processes the kernel has killed for memory in this process's cgroup; -1 if the kernel does not count
// them.
int64_t memory_kills(const std::string& root = "");

// Returns the allocator's free memory to the system. Call it after large blocks were freed that no code needs again.
void return_free_memory();

std::string host_name();

// Returns the CPU time of all threads of this process so far, in seconds.
double process_cpu_seconds();
double thread_cpu_seconds();  // CPU time of the calling thread
double unix_seconds();        // unix time
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns message texts: the missing resource, its limits, and what to do.
std::string no_memory_text(const std::string& root = "");
std::string no_thread_text(const std::string& root = "");
bool is_out_of_descriptors(int error);  // true for EMFILE and ENFILE
// Throws Error(io) with the limit if this process cannot open `count` more files and connections; `what` needs them.
void require_descriptors(size_t count, const std::string& what);
// Returns the system's text for an error; for a lack of descriptors or memory also the limit and what to do. asio's
// errors have a different category with the values of errno.
std::string error_text(int error);
std::string error_text(const std::system_error& error);
// Returns an error that names the exhausted limit: threads, the memory of their stacks, or descriptors. `unknown`: kind
// of all other errors.
Error limit_error(const std::system_error& error, Failure unknown);

// --- Binding of threads ---

// Binds the calling thread, and threads that it starts later, to hardware threads. Empty: no change. Throws
// Error(config) if the kernel refuses.
void bind_this_thread(const std::vector<int>& cores);
// Returns the hardware threads that the calling thread may use, ascending, as the kernel reports them; for the summary.
std::vector<int> bound_cores();
}  // namespace convoy
