#include "api/crash.h"

#include <c10/util/Exception.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "core/control/exit_codes.h"
#include "core/control/signals.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {

TranslatedException translate_exception(Failure unknown) {
  if (const std::string lack = out_of_memory_text(); !lack.empty()) return {Failure::out_of_memory, lack};
  try {
    throw;
  } catch (const CommError& error) {
    // Names the rank that caused the failure. A lost peer is no cause: it follows from the failure of another rank.
    const bool others = error.kind() != Failure::peer_lost && error.kind() != Failure::internal &&
                        (error.kind() != Failure::rendezvous || error.rank() >= 0);
    return {error.kind(), error.what(), others ? std::optional<int>(error.rank()) : std::nullopt};
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {Failure::io, error_text(error)};
  } catch (const std::system_error& error) {
    const Error described = limit_error(error, unknown);
    return {described.kind(), described.what()};
  } catch (const c10::Error& error) {
    return {unknown, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {unknown, error.what()};
  } catch (...) {
    return {unknown, "an exception that is no std::exception"};
  }
}

namespace {

// Separate stack for handlers, so that a stack overflow can be reported.
alignas(16) char signal_stack[64 * 1024];

struct RankOfThread {
  StateFile* file = nullptr;
  int rank = -1;
};
thread_local RankOfThread rank_of_this_thread;
thread_local std::unique_ptr<char[]> stack_of_this_thread;
// State file of the process's first rank, for threads that belong to no rank.
std::atomic<StateFile*> some_file{nullptr};

// Text in a buffer of fixed size; longer text is truncated. Async-signal-safe.
template <size_t size>
class FixedText {
 public:
  void add(const char* text) {
    while (*text != '\0' && used_ + 1 < size) text_[used_++] = *text++;
  }
  void add(int number) {
    char digits[16] = "";
    std::to_chars(digits, std::end(digits) - 1, number);
    add(digits);
  }
  // Escapes text for a JSON string. Bytes beyond ASCII may be incomplete characters, so they become '?'.
  void add_quoted(const char* text) {
    for (; *text != '\0'; ++text) {
      const auto byte = static_cast<unsigned char>(*text);
      const char one[] = {byte < 0x20 || byte > 0x7e ? '?' : *text, '\0'};
      if (*text == '"' || *text == '\\') add("\\");
      add(one);
    }
  }
  const char* c_str() const { return text_; }

 private:
  char text_[size] = "";
  size_t used_ = 0;
};

// The first thread that fails reports the failure and ends the process. Ranks that are threads may fail together.
class Reporter {
 public:
  // Returns true for the first thread. Another thread waits 5 seconds for the end of the process, and then gets false.
  // The first thread gets false if it fails again. Async-signal-safe.
  bool is_this_thread() {
    const pid_t self = gettid();
    pid_t first = 0;
    if (thread_.compare_exchange_strong(first, self)) return true;
    constexpr int tries = 50;
    for (int i = 0; first != self && i < tries; ++i) {
      timespec pause{0, 100'000'000};
      nanosleep(&pause, nullptr);
    }
    return false;
  }

 private:
  std::atomic<pid_t> thread_{0};
};
Reporter crash_reporter, terminate_reporter;

void print(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
  (void)ignored;
}

// Writes the reason to the rank's state file, where the supervisor finds it, and to stderr. Async-signal-safe.
[[noreturn]] void end_with(Failure kind, int code, const char* message) {
  print(program_invocation_short_name);
  print(": ");
  print(message);
  print("\n");
  StateFile* const file = rank_of_this_thread.file != nullptr ? rank_of_this_thread.file : some_file.load();
  if (file != nullptr) {
    FixedText<2048> json;
    json.add("{\"kind\":\"");
    json.add(name_of(kind));
    json.add("\",\"rank\":");
    json.add(rank_of_this_thread.rank);
    json.add(",\"message\":\"");
    json.add_quoted(message);
    json.add("\"}");
    file->failure(json.c_str());
  }
  _exit(code);
}

// --- SIGBUS ---

// Reads a hexadecimal number and moves `at` past it.
uintptr_t hexadecimal(const char*& at, const char* end) {
  uintptr_t value = 0;
  at = std::from_chars(at, end, value, 16).ptr;
  return value;
}

struct MappedAddress {
  char path[1024];
  uintptr_t offset;  // in the file
};

// Parses a line of /proc/self/maps, "from-to permissions offset device inode path". False if it does not contain
// `address`.
bool find_in_range(const char* line, uintptr_t address, MappedAddress& found) {
  const char* const end = line + strlen(line);
  const uintptr_t from = hexadecimal(line, end);
  if (*line++ != '-') return false;
  if (address < from || address >= hexadecimal(line, end)) return false;
  const char* path = strchr(line, '/');
  const char* offset = strchr(line + 1, ' ');
  if (path == nullptr || offset == nullptr) return false;
  found.offset = hexadecimal(++offset, end) + (address - from);
  strncpy(found.path, path, sizeof found.path - 1);
  found.path[sizeof found.path - 1] = '\0';
  return true;
}

// Returns false if no file is mapped there. Reads /proc/self/maps by system calls only, as a signal handler must.
bool file_mapped_at(const void* address, MappedAddress& mapped) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  static char buffer[8192];  // used only by the reporting thread
  size_t have = 0;
  bool found = false;
  for (ssize_t got; !found && (got = read(maps, buffer + have, sizeof buffer - 1 - have)) > 0;) {
    have += static_cast<size_t>(got);
    buffer[have] = '\0';
    char* line = buffer;
    for (char* end; !found && (end = strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = '\0';
      found = find_in_range(line, reinterpret_cast<uintptr_t>(address), mapped);
    }
    have -= static_cast<size_t>(line - buffer);
    if (!found) memmove(buffer, line, have);
    if (have == sizeof buffer - 1) have = 0;  // a line of this length has no file path
  }
  close(maps);
  return found;
}

// True if memory ran out: the file still contains the page. Otherwise the file became shorter.
bool lacks_memory(const MappedAddress& mapped) {
  if (strncmp(mapped.path, "/memfd:", 7) == 0) return true;
  if (strncmp(mapped.path, "/dev/shm/", 9) != 0) return false;
  struct stat status {};
  return stat(mapped.path, &status) != 0 || mapped.offset < static_cast<uintptr_t>(status.st_size);
}

void end_if_mapped(const void* address) {
  MappedAddress mapped;
  if (!file_mapped_at(address, mapped)) return;
  FixedText<1600> message;
  if (lacks_memory(mapped)) {
    message.add("out of memory: the system has no room left for shared memory (SIGBUS in ");
    message.add(mapped.path);
    message.add("); try fewer ranks on this host, or a larger /dev/shm");
    end_with(Failure::out_of_memory, exit_code::out_of_memory, message.c_str());
  }
  message.add(mapped.path);
  message.add(
      ": cannot be read any more (SIGBUS): while it was mapped it became shorter, or its disk failed; restore the "
      "file, and replace data by renaming a new file over it");
  end_with(Failure::io, exit_code::io, message.c_str());
}

// Ends by the signal itself, so that the launcher sees it.
void die_by(int signal_number) {
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void crashed(int signal_number, siginfo_t* info, void*) {
  if (!crash_reporter.is_this_thread()) return die_by(signal_number);
  if (signal_number == SIGBUS && info->si_code > 0) end_if_mapped(info->si_addr);
  const CurrentCrashNote note = current_crash_note();
  // Only stores to mapped memory.
  if (rank_of_this_thread.file != nullptr) {
    rank_of_this_thread.file->phase(crashed_phase);
    if (note.failure != nullptr) rank_of_this_thread.file->failure(note.failure);
  }
  print("fatal: ");
  const char* name = sigabbrev_np(signal_number);
  print("SIG");
  print(name ? name : "?");
  if (note.text != nullptr) {
    print(" in ");
    print(note.text);
  }
  print("; backtrace of the thread that caused it:\n");
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  die_by(signal_number);
}

// --- std::terminate ---

std::terminate_handler terminate_before = nullptr;
std::function<int(const char*)> report_early_end;
thread_local std::function<void()> report_uncaught;

[[noreturn]] void end_early(const char* reason) {
  const int code = report_early_end(reason);
  std::fflush(nullptr);
  _exit(code);
}

void* do_nothing(void*) { return nullptr; }

// Returns which resource the system refuses to this process, with its limit; "" if none. An exception that ended a
// library's constructor is not visible here, so this tries to get a thread and memory once more.
std::string refused_by_system() {
  if (std::current_exception()) try {
      throw;
    } catch (const std::bad_alloc&) {
      return no_memory_text();
    } catch (const std::system_error& error) {
      return error.code().value() == EAGAIN ? no_thread_text() : "";
    } catch (...) {
      return "";
    }
  pthread_t thread;
  const int problem = pthread_create(&thread, nullptr, do_nothing, nullptr);
  if (problem == EAGAIN) return no_thread_text();
  if (problem == 0) pthread_detach(thread);
  constexpr size_t some = 64 << 20;
  void* const memory = mmap(nullptr, some, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return no_memory_text();
  munmap(memory, some);
  return "";
}

// Names the limits without allocating memory.
[[noreturn]] void end_with_memory_limits() {
  FixedText<256> message;
  message.add("out of memory on the host");
  const char* before = " (";
  const auto add = [&](__rlimit_resource resource, const char* name) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    message.add(before);
    message.add(name);
    message.add(" is ");
    message.add(static_cast<int>(limit.rlim_cur >> 20));
    message.add(" MiB");
    before = ", ";
  };
  add(RLIMIT_AS, "RLIMIT_AS (`ulimit -v`)");
  add(RLIMIT_DATA, "RLIMIT_DATA (`ulimit -d`)");
  message.add(*before == ',' ? ")" : "");
  end_with(Failure::out_of_memory, exit_code::out_of_memory, message.c_str());
}

[[noreturn]] void terminated() {
  if (const auto report = std::exchange(report_uncaught, nullptr); report && std::current_exception()) {
    report();
    std::fflush(nullptr);
    if (terminate_before != nullptr) terminate_before();
    std::abort();
  }
  if (terminate_reporter.is_this_thread()) try {
      const std::string reason = refused_by_system();
      if (!reason.empty()) end_with(Failure::out_of_memory, exit_code::out_of_memory, reason.c_str());
    } catch (...) {  // no memory for a text either
      end_with_memory_limits();
    }
  if (report_early_end && std::current_exception()) end_early(nullptr);
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

// Runs at exit(). If a component or a program calls it before the end of the job, reports this as a failure: the
// process would otherwise end with code 0, as if training were complete.
void exited() {
  const CurrentCrashNote note = current_crash_note();
  if (note.text == nullptr && report_early_end)
    end_early("the process ended by exit(), or returned from main(), before the end of its job; destroy the Job first");
  if (note.text == nullptr) return;
  FixedText<1600> message;
  message.add("exit() was called in ");
  message.add(note.text);
  message.add(": it ended the process; throw an exception instead");
  end_with(Failure::training, exit_code_of(Failure::training), message.c_str());
}

}  // namespace

void set_crash_rank(StateFile* file, int rank) {
  if (file == nullptr && some_file == rank_of_this_thread.file) some_file = nullptr;
  StateFile* none = nullptr;
  if (file != nullptr) some_file.compare_exchange_strong(none, file);
  rank_of_this_thread = {file, rank};
  // Each thread needs a signal stack; the main thread has one.
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  if (file != nullptr && (stack.ss_flags & SS_DISABLE) != 0) {
    stack_of_this_thread = std::make_unique<char[]>(sizeof signal_stack);
    stack = {stack_of_this_thread.get(), 0, sizeof signal_stack};
    sigaltstack(&stack, nullptr);
  } else if (file == nullptr && stack_of_this_thread) {
    stack = {nullptr, SS_DISABLE, 0};
    sigaltstack(&stack, nullptr);
    stack_of_this_thread.reset();
  }
}

void install_terminate_handler() {
  const std::terminate_handler before = std::set_terminate(terminated);
  if (before != terminated) terminate_before = before;
}

void on_early_end(std::function<int(const char*)> report) { report_early_end = std::move(report); }

void on_uncaught(std::function<void()> report) {
  if (report) install_terminate_handler();
  report_uncaught = std::move(report);
}

void install_crash_handlers() {
  install_terminate_handler();
  // The first call loads libgcc, which allocates; a handler must not do that.
  void* frame[1];
  backtrace(frame, 1);
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = crashed;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int signal_number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigaction(signal_number, &action, nullptr);
  std::atexit(exited);
  std::at_quick_exit(exited);
}

namespace {

int stop_signal_pipe[2] = {-1, -1};

void on_stop_signal(int number) {
  const int kept = errno;
  const auto byte = static_cast<unsigned char>(number);
  const ssize_t written = write(stop_signal_pipe[1], &byte, 1);  // if the pipe is full, a request is pending already
  (void)written;
  errno = kept;
}

}  // namespace

void catch_stop_signals() {
  if (pipe2(stop_signal_pipe, O_CLOEXEC) != 0) return;  // signals then keep their default action
  fcntl(stop_signal_pipe[1], F_SETFL, O_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : stop_signals())
    if (number != SIGQUIT) sigaction(number, &action, nullptr);
}

void report_stop_signals(const std::shared_ptr<Channel>& channel) {
  if (stop_signal_pipe[0] < 0) return;
  // Never destroyed: the thread may use them while the process ends.
  static std::mutex& mutex = *new std::mutex;
  static std::weak_ptr<Channel>& current = *new std::weak_ptr<Channel>;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    current = channel;
  }
  static std::atomic<bool> started{false};
  if (started.exchange(true)) return;
  std::thread([] {
    unsigned char number = 0;
    ssize_t got = 0;
    while ((got = read(stop_signal_pipe[0], &number, 1)) != 0) {
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return;
      std::shared_ptr<Channel> alive;
      for (int tries = 0; !alive && tries < 100; ++tries) {  // for a moment, there is none between two memberships
        if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const std::lock_guard<std::mutex> lock(mutex);
        alive = current.lock();
      }
      if (alive) alive->post(protocol::signalled, {{"signal", static_cast<int>(number)}});
    }
  }).detach();
}

}  // namespace convoy
