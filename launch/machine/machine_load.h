// Other load on the measured cores, which would make measured times wrong.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace convoy {

// Seconds of CPU time since the machine started, on some of its hardware threads.
struct CpuTimes {
  double busy = 0;    // of all processes of this machine
  double stolen = 0;  // of other virtual machines
};
// `stat`: text of /proc/stat. Nothing if it lacks one of the hardware threads.
std::optional<CpuTimes> cpu_times(const std::string& stat, const std::vector<int>& threads);

// Share of the hardware threads' time that other processes used, 0 to 1. `own`: CPU seconds of this process and its
// children in the same period.
double other_load(const CpuTimes& before, const CpuTimes& after, double own, double seconds, size_t threads);

// Measures from construction on. Threads: one. Reports nothing if /proc/stat cannot be read.
class LoadWatch {
 public:
  explicit LoadWatch(std::vector<int> threads);
  std::optional<double> share() const;  // other load until now; children count after they have been waited for

 private:
  std::vector<int> threads_;
  std::optional<CpuTimes> before_;
  double own_ = 0, start_ = 0;
};

// Other load on these hardware threads during a short sleep of this process.
std::optional<double> load_now(const std::vector<int>& threads);

constexpr double busy_machine = 0.2;  // share of the cores above which measured times justify no advice

}  // namespace convoy
