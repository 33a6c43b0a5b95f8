// The handler writes into one place that is there before any signal is sent: addresses only. Names are found elsewhere, by
// whoever prints them (launch/stacks.h).
#include "launch/rank/own_stacks.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "core/control/dispatcher.h"
#include "core/text.h"

namespace convoy {
namespace {

constexpr int most_frames = 64;
constexpr size_t most_threads = 24;
constexpr auto patience = std::chrono::milliseconds(100);

// What the thread that was asked last has to fill in. A late answer of an earlier one finds another number and leaves.
struct Answer {
  std::atomic<pid_t> asked{0};
  std::atomic<int> count{-1};
  void* frames[most_frames];
};
Answer answer;

void taken(int) {
  const int saved = errno;
  if (answer.asked.load(std::memory_order_acquire) == own_thread_id()) {
    // Since glibc 2.35 the unwinder finds its tables without a lock, and install_stack_handler has loaded it.
    const int count = backtrace(answer.frames, most_frames);
    answer.count.store(count, std::memory_order_release);
  }
  errno = saved;
}

std::string read_line(const std::string& path) {
  char text[512] = "";
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? std::string(text, static_cast<size_t>(got)) : std::string();
}

std::vector<pid_t> own_threads() {
  std::vector<pid_t> threads;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return threads;
  while (const dirent* entry = readdir(folder))
    if (const int thread = atoi(entry->d_name); thread > 0) threads.push_back(thread);
  closedir(folder);
  return threads;
}

std::string place_of(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    char text[32];
    snprintf(text, sizeof text, "+0x%zx", reinterpret_cast<size_t>(address));
    return text;
  }
  char offset[32];
  snprintf(offset, sizeof offset, "+0x%zx",
           reinterpret_cast<size_t>(address) - reinterpret_cast<size_t>(info.dli_fbase));
  // The program's own name is as it was started.
  char path[4096];
  const bool real = realpath(info.dli_fname, path) != nullptr;
  return std::string(real ? path : info.dli_fname) + offset;
}

ThreadStack stack_of(pid_t thread) {
  ThreadStack stack;
  const std::string folder = str("/proc/self/task/", thread);
  stack.name = read_line(folder + "/comm");
  if (!stack.name.empty() && stack.name.back() == '\n') stack.name.pop_back();
  const std::string status = read_line(folder + "/stat");
  if (const size_t end = status.rfind(") "); end != std::string::npos) stack.state = status[end + 2];
  answer.count.store(-1);
  answer.asked.store(thread);
  if (syscall(SYS_tgkill, getpid(), thread, stack_signal()) != 0) return stack;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int count = -1;
  while ((count = answer.count.load(std::memory_order_acquire)) < 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  answer.asked.store(0);
  // The first two are the handler and the trampoline that the kernel put there.
  for (int i = 2; i < count; ++i) stack.frames.push_back(place_of(answer.frames[i]));
  return stack;
}

// Helpers of libraries that wait for work: they sleep, and nobody's own code is on their stack.
bool idle_helper(const ThreadStack& stack) {
  static const char* const libraries[] = {"/libc.so",  "/libgomp", "/libpthread",  "/ld-linux",  "/libopen-pal",
                                          "/libevent", "/libpmix", "/libopen-rte", "/libstdc++", "/libcuda",
                                          "/libtorch", "/libc10",  "/libnccl",     "/libmpi",    "/mca_"};
  return stack.state != 'R' && std::all_of(stack.frames.begin(), stack.frames.end(), [](const std::string& frame) {
           return std::any_of(std::begin(libraries), std::end(libraries),
                              [&](const char* library) { return frame.find(library) != std::string::npos; });
         });
}

}  // namespace

pid_t own_thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void install_stack_handler() {
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action {};
  action.sa_handler = taken;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::vector<ThreadStack> own_stacks(const std::vector<RankThreadId>& ranks) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  std::vector<ThreadStack> stacks;
  const pid_t self = own_thread_id();
  for (const RankThreadId& rank : ranks) {
    if (rank.thread == self) continue;
    stacks.push_back(stack_of(rank.thread));
    stacks.back().rank = rank.rank;
  }
  for (const pid_t thread : own_threads()) {
    const bool known =
        std::any_of(ranks.begin(), ranks.end(), [&](const RankThreadId& rank) { return rank.thread == thread; });
    if (known || thread == self || stacks.size() >= most_threads) continue;
    ThreadStack stack = stack_of(thread);
    if (!stack.frames.empty() && stack.name.rfind("convoy-", 0) != 0 && !idle_helper(stack))
      stacks.push_back(std::move(stack));
  }
  return stacks;
}

void tell_stacks_at(int signal_number, const std::string& prefix) {
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, signal_number);
  pthread_sigmask(SIG_BLOCK, &asked, nullptr);
  std::thread([asked, prefix, caller = own_thread_id()] {
    pthread_setname_np(pthread_self(), "convoy-stacks");
    for (int number = 0; sigwait(&asked, &number) == 0;) {
      std::string lines;
      for (const ThreadStack& stack : own_stacks({{-1, caller}})) lines += str(prefix, to_json(stack).dump(), "\n");
      lines += str(prefix, "null\n");
      for (size_t done = 0; done < lines.size();) {
        const ssize_t written = write(STDERR_FILENO, lines.data() + done, lines.size() - done);
        if (written < 0 && errno != EINTR) break;
        if (written > 0) done += static_cast<size_t>(written);
      }
    }
  }).detach();
}

}  // namespace convoy
