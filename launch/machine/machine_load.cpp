#include "launch/machine/machine_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "core/files/files.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

constexpr std::chrono::milliseconds moment{250};  // about 25 ticks of the kernel's clock

std::optional<CpuTimes> read_times(const std::vector<int>& threads) {
  return cpu_times(read_file_if_any("/proc/stat"), threads);
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double own_seconds() {
  rusage children{};
  getrusage(RUSAGE_CHILDREN, &children);
  return process_cpu_seconds() + seconds_of(children.ru_utime) + seconds_of(children.ru_stime);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

std::optional<CpuTimes> cpu_times(const std::string& stat, const std::vector<int>& threads) {
  const auto ticks = static_cast<double>(std::max(1L, sysconf(_SC_CLK_TCK)));
  std::map<std::string, CpuTimes> by_thread;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line) && line.rfind("cpu", 0) == 0;) {
    std::istringstream fields(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, waits = 0, interrupts = 0, soft = 0, stolen = 0;
    fields >> name >> user >> nice >> system >> idle >> waits >> interrupts >> soft >> stolen;
    if (fields) by_thread[name] = {(user + nice + system + interrupts + soft) / ticks, stolen / ticks};
  }
  CpuTimes all;
  for (const int thread : threads) {
    const auto found = by_thread.find(str("cpu", thread));
    if (found == by_thread.end()) return std::nullopt;
    all.busy += found->second.busy;
    all.stolen += found->second.stolen;
  }
  return threads.empty() ? std::nullopt : std::optional<CpuTimes>(all);
}

double other_load(const CpuTimes& before, const CpuTimes& after, double own, double seconds, size_t threads) {
  const double others = std::max(0.0, after.busy - before.busy - own) + std::max(0.0, after.stolen - before.stolen);
  const double all = seconds * static_cast<double>(threads);
  return all > 0 ? std::min(1.0, others / all) : 0;
}

LoadWatch::LoadWatch(std::vector<int> threads)
    : threads_(std::move(threads)), before_(read_times(threads_)), own_(own_seconds()), start_(now()) {}

std::optional<double> LoadWatch::share() const {
  const std::optional<CpuTimes> after = read_times(threads_);
  if (!before_ || !after) return std::nullopt;
  return other_load(*before_, *after, own_seconds() - own_, now() - start_, threads_.size());
}

std::optional<double> load_now(const std::vector<int>& threads) {
  const LoadWatch watch(threads);
  std::this_thread::sleep_for(moment);
  return watch.share();
}

}  // namespace convoy
