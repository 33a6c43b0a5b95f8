// What cgroups (versions 1 and 2) allow this process, read from /proc and /sys.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace convoy {

struct Limits {
  std::optional<double> cores;    // CPU time per time: 1.5 is one core and a half
  std::optional<int64_t> memory;  // bytes
};
// The tightest limit of the process's groups and their ancestors. `root` stands before /proc and /sys, for tests.
Limits cgroup_limits(const std::string& root = "");

}  // namespace convoy
