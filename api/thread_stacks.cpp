// Stacks of this process's threads. The handler writes only addresses, to memory that exists before any signal is sent.
// launch/diagnose/stall_report.h resolves the names.
#include "api/thread_stacks.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <sstream>
#include <thread>

#include "core/base/text.h"
#include "core/control/connection.h"
#include "core/files/files.h"

namespace convoy {
namespace {

constexpr int most_frames = 64;
constexpr size_t most_threads = 24;
constexpr auto answer_limit = std::chrono::milliseconds(100);

// The answer of the thread that received the last signal. A late answer to an earlier request has another thread id.
struct Answer {
  std::atomic<pid_t> asked{0};
  std::atomic<int> count{-1};
  void* frames[most_frames];
};
Answer answer;

void on_stack_signal(int) {
  const int saved = errno;
  if (answer.asked.load(std::memory_order_acquire) == gettid()) {
    // glibc 2.35 and later find the unwinder's tables without a lock; install_stack_handler has loaded the unwinder.
    const int count = backtrace(answer.frames, most_frames);
    answer.count.store(count, std::memory_order_release);
  }
  errno = saved;
}

// "PATH+0xOFFSET" in the file that is loaded there; "+0xADDRESS" without a file.
std::string source_of(void* address) {
  Dl_info info{};
  const bool known = dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  std::ostringstream text;
  // The path of the program itself may be relative, as it was started.
  char path[4096];
  if (known) text << (realpath(info.dli_fname, path) != nullptr ? path : info.dli_fname);
  const auto base = known ? reinterpret_cast<size_t>(info.dli_fbase) : 0;
  text << "+0x" << std::hex << reinterpret_cast<size_t>(address) - base;
  return valid_utf8(text.str());
}

ThreadStack stack_of(pid_t thread) {
  ThreadStack stack;
  const std::string folder = str("/proc/self/task/", thread);
  stack.name = valid_utf8(first_line(folder + "/comm"));
  const std::string status = first_line(folder + "/stat");
  if (const size_t end = status.rfind(") "); end != std::string::npos) stack.state = status[end + 2];
  answer.count.store(-1);
  answer.asked.store(thread);
  if (syscall(SYS_tgkill, getpid(), thread, stack_signal()) != 0) return stack;
  const auto deadline = std::chrono::steady_clock::now() + answer_limit;
  int count = -1;
  while ((count = answer.count.load(std::memory_order_acquire)) < 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  answer.asked.store(0);
  // The first two frames are the handler and the kernel's trampoline.
  for (int i = 2; i < count; ++i) stack.frames.push_back(source_of(answer.frames[i]));
  return stack;
}

// True for sleeping threads of libraries that wait for work: their stacks contain only library code.
bool idle_helper(const ThreadStack& stack) {
  static const char* const libraries[] = {"/libc.so",  "/libgomp", "/libpthread",  "/ld-linux",  "/libopen-pal",
                                          "/libevent", "/libpmix", "/libopen-rte", "/libstdc++", "/libcuda",
                                          "/libtorch", "/libc10",  "/libnccl",     "/libmpi",    "/mca_"};
  return stack.state != "R" && std::all_of(stack.frames.begin(), stack.frames.end(), [](const std::string& frame) {
           return std::any_of(std::begin(libraries), std::end(libraries),
                              [&](const char* library) { return frame.find(library) != std::string::npos; });
         });
}

}  // namespace

void install_stack_handler() {
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::vector<ThreadStack> thread_stacks(const std::vector<RankThreadId>& ranks) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  std::vector<ThreadStack> stacks;
  const pid_t self = gettid();
  for (const RankThreadId& rank : ranks) {
    if (rank.thread == self) continue;
    stacks.push_back(stack_of(rank.thread));
    stacks.back().rank = rank.rank;
  }
  for (const std::string& name : names_in("/proc/self/task")) {
    const pid_t thread = atoi(name.c_str());
    const bool known =
        std::any_of(ranks.begin(), ranks.end(), [&](const RankThreadId& rank) { return rank.thread == thread; });
    if (known || thread == self || stacks.size() >= most_threads) continue;
    ThreadStack stack = stack_of(thread);
    if (!stack.frames.empty() && stack.name.rfind("convoy-", 0) != 0 && !idle_helper(stack))
      stacks.push_back(std::move(stack));
  }
  return stacks;
}

void report_stacks_on(int signal_number, const std::string& prefix) {
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, signal_number);
  pthread_sigmask(SIG_BLOCK, &asked, nullptr);
  std::thread([asked, prefix, caller = gettid()] {
    pthread_setname_np(pthread_self(), "convoy-stacks");
    for (int number = 0; sigwait(&asked, &number) == 0;) {
      std::string lines;
      for (const ThreadStack& stack : thread_stacks({{-1, caller}})) lines += str(prefix, Json(stack).dump(), "\n");
      lines += str(prefix, "null\n");
      write_text(STDERR_FILENO, lines);
    }
  }).detach();
}

}  // namespace convoy
