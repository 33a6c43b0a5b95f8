#include "launch/machine_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "core/text.h"

namespace convoy {
namespace {

constexpr std::chrono::milliseconds moment{250};  // some 25 ticks of the kernel's clock

std::optional<CpuTimes> read_times(const std::vector<int>& units) {
  std::ifstream file("/proc/stat");
  std::ostringstream text;
  text << file.rdbuf();
  return cpu_times(text.str(), units);
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double own_seconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(static_cast<__rusage_who>(who), &usage);
    seconds += seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  }
  return seconds;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

std::optional<CpuTimes> cpu_times(const std::string& stat, const std::vector<int>& units) {
  const auto ticks = static_cast<double>(std::max(1L, sysconf(_SC_CLK_TCK)));
  std::map<std::string, CpuTimes> of_unit;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line) && line.rfind("cpu", 0) == 0;) {
    std::istringstream fields(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, waits = 0, interrupts = 0, soft = 0, stolen = 0;
    fields >> name >> user >> nice >> system >> idle >> waits >> interrupts >> soft >> stolen;
    if (fields) of_unit[name] = {(user + nice + system + interrupts + soft) / ticks, stolen / ticks};
  }
  CpuTimes all;
  for (const int unit : units) {
    const auto found = of_unit.find(str("cpu", unit));
    if (found == of_unit.end()) return std::nullopt;
    all.busy += found->second.busy;
    all.stolen += found->second.stolen;
  }
  return units.empty() ? std::nullopt : std::optional<CpuTimes>(all);
}

double other_work(const CpuTimes& before, const CpuTimes& after, double own, double seconds, size_t units) {
  const double others = std::max(0.0, after.busy - before.busy - own) + std::max(0.0, after.stolen - before.stolen);
  const double all = seconds * static_cast<double>(units);
  return all > 0 ? std::min(1.0, others / all) : 0;
}

LoadWatch::LoadWatch(std::vector<int> units)
    : units_(std::move(units)), before_(read_times(units_)), own_(own_seconds()), start_(now()) {}

std::optional<double> LoadWatch::share() const {
  const std::optional<CpuTimes> after = read_times(units_);
  if (!before_ || !after) return std::nullopt;
  return other_work(*before_, *after, own_seconds() - own_, now() - start_, units_.size());
}

std::optional<double> load_now(const std::vector<int>& units) {
  const LoadWatch watch(units);
  std::this_thread::sleep_for(moment);
  return watch.share();
}

}  // namespace convoy
