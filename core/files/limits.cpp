#include "core/files/limits.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/files.h"

// jemalloc's own function; absent from processes with another allocator.
extern "C" int mallctl(const char*, void*, size_t*, void*, size_t) __attribute__((weak));

namespace convoy {
namespace {

template <class T>
void tighten(std::optional<T>& limit, T value) {
  if (value > 0 && (!limit || value < *limit)) limit = value;
}

// Sum of the named values of a file with lines "name 123"; 0 if there are none.
int64_t stat_of(const std::string& path, std::initializer_list<const char*> names) {
  std::ifstream file(path);
  int64_t sum = 0, value = 0;
  for (std::string name; file >> name >> value;)
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += value;
  return sum;
}

void read_pids(const std::string& folder, Limits& limits) {
  std::istringstream text(first_line(folder + "/pids.max"));
  int64_t most = 0;
  if (text >> most) tighten(limits.threads, most);  // "max" is no number
}

void read_v2(const std::string& folder, Limits& limits) {
  read_pids(folder, limits);
  std::istringstream cpu(first_line(folder + "/cpu.max"));
  double quota = 0, period = 0;
  if (cpu >> quota >> period && period > 0) tighten(limits.cores, quota / period);  // "max" is no number
  std::istringstream memory(first_line(folder + "/memory.max"));
  int64_t bytes = 0;
  if (!(memory >> bytes)) return;
  tighten(limits.memory, bytes);
  tighten(limits.memory_left, std::max<int64_t>(bytes - stat_of(folder + "/memory.stat", {"anon", "shmem"}), 1));
}

void read_v1_cpu(const std::string& folder, Limits& limits) {
  std::istringstream quota_text(first_line(folder + "/cpu.cfs_quota_us"));
  std::istringstream period_text(first_line(folder + "/cpu.cfs_period_us"));
  double quota = 0, period = 0;
  if (quota_text >> quota && period_text >> period && period > 0) tighten(limits.cores, quota / period);
}

void read_v1_memory(const std::string& folder, Limits& limits) {
  std::istringstream text(first_line(folder + "/memory.limit_in_bytes"));
  int64_t bytes = 0;
  if (!(text >> bytes) || bytes >= (int64_t{1} << 60)) return;  // the default is 2^63 less a page
  tighten(limits.memory, bytes);
  const int64_t taken = stat_of(folder + "/memory.stat", {"total_rss", "total_shmem"});
  tighten(limits.memory_left, std::max<int64_t>(bytes - taken, 1));
}

// Reads a cgroup and each of its ancestors, up to the mount. In a container the path may name a group that only the
// host sees. So missing folders are ignored and the mount itself is read last.
template <class Read>
void along(const std::string& mount, std::string path, Limits& limits, Read read) {
  while (true) {
    read(mount + path, limits);
    if (path.empty() || path == "/") return;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

bool OwnCgroup::has(const std::string& controller) const {
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

std::vector<OwnCgroup> own_cgroups(const std::string& root) {
  std::vector<OwnCgroup> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "hierarchy:controllers:/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    groups.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return groups;
}

Limits cgroup_limits(const std::string& root) {
  Limits limits;
  const std::string mount = root + "/sys/fs/cgroup";
  for (const OwnCgroup& group : own_cgroups(root)) {
    if (group.controllers.empty()) {
      along(mount, group.path, limits, read_v2);
      along(mount + "/unified", group.path, limits, read_v2);
    }
    if (group.has("cpu")) along(mount + "/cpu", group.path, limits, read_v1_cpu);
    if (group.has("memory")) along(mount + "/memory", group.path, limits, read_v1_memory);
    if (group.has("pids")) along(mount + "/pids", group.path, limits, read_pids);
  }
  return limits;
}

int64_t memory_kills(const std::string& root) {
  int64_t kills = -1;
  // The group of the killed process counts, whichever limit was reached: ancestors also count kills of other groups.
  const auto read = [&kills](const std::string& folder, Limits&) {
    for (const char* name : {"/memory.events", "/memory.oom_control"}) {
      std::ifstream file(folder + name);
      std::string key;
      for (int64_t count = 0; kills < 0 && file >> key >> count;)
        if (key == "oom_kill") kills = count;
    }
  };
  const std::string mount = root + "/sys/fs/cgroup";
  Limits unused;
  for (const OwnCgroup& group : own_cgroups(root)) {
    if (group.controllers.empty()) along(mount, group.path, unused, read);
    if (group.has("memory")) along(mount + "/memory", group.path, unused, read);
  }
  return kills;
}

namespace {

// Adds "RLIMIT_AS is 2 GiB"; nothing if there is no such limit.
template <class Format>
void add_rlimit(int resource, const char* name, Format format, std::vector<std::string>& limits) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    limits.push_back(str(name, " is ", format(limit.rlim_cur)));
}

std::string with_limits(const std::string& what, const std::vector<std::string>& limits, const std::string& advice) {
  return str(what, limits.empty() ? "" : " (" + join(limits, ", ") + ")", "; ", advice);
}

void add_memory_limits(std::vector<std::string>& limits) {
  const auto bytes = [](rlim_t value) { return human_bytes(static_cast<double>(value)); };
  add_rlimit(RLIMIT_AS, "RLIMIT_AS (`ulimit -v`)", bytes, limits);
  add_rlimit(RLIMIT_DATA, "RLIMIT_DATA (`ulimit -d`)", bytes, limits);
}

// A thread needs memory for its stack; pthread_create reports a lack of it with EAGAIN, as a lack of threads.
bool thread_stack_fits() {
  pthread_attr_t attributes;
  size_t size = 0;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_getstacksize(&attributes, &size);
  pthread_attr_destroy(&attributes);
  void* const stack = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return false;
  munmap(stack, size);
  return true;
}

// Bytes of a line of /proc/meminfo, such as "MemAvailable:   123 kB"; nothing if there is no such line.
std::optional<int64_t> host_memory(const std::string& root, const std::string& name) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string found;
    int64_t kib = 0;
    if (words >> found >> kib && found == name) return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> memory_left(const std::string& root) {
  std::optional<int64_t> left = cgroup_limits(root).memory_left;
  if (const auto available = host_memory(root, "MemAvailable:")) tighten(left, *available);
  return left;
}

std::string no_memory_text(const std::string& root) {
  const auto text = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::vector<std::string> limits;
  add_memory_limits(limits);
  if (const auto memory = cgroup_limits(root).memory) limits.push_back("memory of the cgroup is " + text(*memory));
  const auto total = host_memory(root, "MemTotal:"), left = host_memory(root, "MemAvailable:");
  if (limits.empty() && total && left)
    limits.push_back(str("the host has ", text(*total), " of memory; ", text(*left), " are free"));
  return with_limits("out of memory on the host", limits,
                     "try a smaller train.batch, smaller data or model, or fewer ranks on this host");
}

std::string no_thread_text(const std::string& root) {
  std::vector<std::string> limits;
  if (!thread_stack_fits()) {
    add_memory_limits(limits);
    return with_limits("out of memory on the host: the stack of another thread does not fit", limits,
                       "raise the limit, or try fewer ranks on this host or a smaller launch.threads");
  }
  add_rlimit(
      RLIMIT_NPROC, "RLIMIT_NPROC (`ulimit -u`), for all of this user's processes,", [](rlim_t value) { return value; },
      limits);
  if (const auto most = cgroup_limits(root).threads) limits.push_back(str("pids.max of the cgroup is ", *most));
  return with_limits("no more threads or processes may be started", limits,
                     "raise the limit, or try fewer ranks on this host or a smaller launch.threads");
}

namespace {

std::string with_limit_of(const std::string& text, int error) {
  if (error == ENFILE) return text + ": no more files may be open on this host; raise the sysctl fs.file-max";
  if (error == ENOMEM) return text + ": " + no_memory_text();
  if (error != EMFILE) return text;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return str(text, ": no more files and connections may be open: RLIMIT_NOFILE (`ulimit -n`) is ", limit.rlim_cur,
             " for each process; raise it, for example by `ulimit -n 4096`, or try fewer ranks on this host");
}

}  // namespace

bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

void require_descriptors(size_t count, const std::string& what) {
  std::vector<int> opened;
  int problem = 0;
  while (opened.size() < count && problem == 0) {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
      problem = errno;
    else
      opened.push_back(fd);
  }
  for (const int fd : opened) close(fd);
  if (is_out_of_descriptors(problem)) throw Error(Failure::io, what, ": ", error_text(problem));
}

std::string error_text(int error) { return with_limit_of(std::strerror(error), error); }

std::string error_text(const std::system_error& error) { return with_limit_of(error.what(), error.code().value()); }

Error limit_error(const std::system_error& error, Failure unknown) {
  if (error.code() == std::errc::resource_unavailable_try_again) return {Failure::out_of_memory, no_thread_text()};
  return {is_out_of_descriptors(error.code().value()) ? Failure::io : unknown, error_text(error)};
}

void return_free_memory() {
  if (mallctl != nullptr)
    mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);  // 4096: all arenas
  else
    malloc_trim(0);
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

namespace {
constexpr int max_hardware_threads = 8192;

// Owner of a CPU set. CPU_ALLOC holds more hardware threads than the fixed cpu_set_t.
struct CpuSet {
  cpu_set_t* set = CPU_ALLOC(max_hardware_threads);
  size_t size = CPU_ALLOC_SIZE(max_hardware_threads);
  CpuSet() { CPU_ZERO_S(size, set); }
  ~CpuSet() { CPU_FREE(set); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
};
}  // namespace

void bind_this_thread(const std::vector<int>& cores) {
  if (cores.empty()) return;
  CpuSet wanted;
  for (int core : cores) CPU_SET_S(static_cast<size_t>(core), wanted.size, wanted.set);
  if (sched_setaffinity(0, wanted.size, wanted.set) != 0)
    throw Error(Failure::config, "launch: cannot bind to the ", cores.size(), " cores from ", cores.front(),
                " on: ", std::strerror(errno), "; try --set launch.bind=none");
}

std::vector<int> bound_cores() {
  CpuSet now;
  std::vector<int> cores;
  if (sched_getaffinity(0, now.size, now.set) != 0) return cores;
  for (int core = 0; core < max_hardware_threads; ++core)
    if (CPU_ISSET_S(static_cast<size_t>(core), now.size, now.set)) cores.push_back(core);
  return cores;
}

}  // namespace convoy
