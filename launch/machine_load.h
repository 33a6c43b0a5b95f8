// Other work on the cores that are measured on: what makes measured times wrong without a sign of it.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace convoy {

// Seconds of processor time since the machine started, on some of its processing units.
struct CpuTimes {
  double busy = 0;    // of all processes of this machine
  double stolen = 0;  // of other virtual machines
};
// `stat`: text of /proc/stat. Nothing where one of the units is not in it.
std::optional<CpuTimes> cpu_times(const std::string& stat, const std::vector<int>& units);

// Share of the units' time that others took, 0 to 1. `own`: processor seconds of this process and its children
// meanwhile.
double other_work(const CpuTimes& before, const CpuTimes& after, double own, double seconds, size_t units);

// From its creation on. Threads: one. Failure: where /proc/stat cannot be read, nothing is known.
class LoadWatch {
 public:
  explicit LoadWatch(std::vector<int> units);
  std::optional<double> share() const;  // other_work until now; children count once they have been waited for

 private:
  std::vector<int> units_;
  std::optional<CpuTimes> before_;
  double own_ = 0, start_ = 0;
};

// Others' share of these units for a moment in which this process sleeps.
std::optional<double> load_now(const std::vector<int>& units);

constexpr double busy_machine = 0.2;  // share of the cores above which measured times are no ground for advice

}  // namespace convoy
