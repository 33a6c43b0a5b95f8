#include "launch/rank/crash.h"

#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <system_error>

#include "core/control/channel.h"
#include "core/control/phases.h"
#include "core/limits.h"
#include "launch/exit_codes.h"

namespace convoy {
namespace {

// A stack of its own, so that an overflow of the normal one can still be told.
alignas(16) char signal_stack[64 * 1024];

struct RankOfThread {
  StateFile* file = nullptr;
  int rank = -1;
};
thread_local RankOfThread rank_of_this_thread;
thread_local std::unique_ptr<char[]> stack_of_this_thread;
thread_local const char* place_of_this_thread = nullptr;    // of the innermost CrashPlace
thread_local const char* failure_of_this_thread = nullptr;  // the same as an Abort
// The file of the process's first rank, for threads that belong to none.
std::atomic<StateFile*> some_file{nullptr};

// Text in a buffer of fixed size; what does not fit is cut. Async-signal-safe.
template <size_t size>
class FixedText {
 public:
  void add(const char* text) {
    while (*text != '\0' && used_ + 1 < size) text_[used_++] = *text++;
  }
  void add(int number) {
    char digits[16];
    int count = 0;
    if (number < 0) add("-");
    for (unsigned left = number < 0 ? 0U - static_cast<unsigned>(number) : static_cast<unsigned>(number);
         count == 0 || left > 0; left /= 10)
      digits[count++] = static_cast<char>('0' + left % 10);
    while (count > 0 && used_ + 1 < size) text_[used_++] = digits[--count];
  }
  // As inside of a JSON string. A byte beyond ASCII may be half a character, and becomes '?'.
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

// The first thread that fails reports it and ends the process. Ranks that are threads may fail together.
class Reporter {
 public:
  // True for the first thread. Another one waits for the end of the process; false if that does not come, and if the
  // reporting thread itself fails again. Async-signal-safe.
  bool is_this_thread() {
    const pid_t own = gettid();
    pid_t first = 0;
    if (thread_.compare_exchange_strong(first, own)) return true;
    constexpr int tries = 50;
    for (int i = 0; first != own && i < tries; ++i) {
      timespec pause{0, 100'000'000};
      nanosleep(&pause, nullptr);
    }
    return false;
  }

 private:
  std::atomic<pid_t> thread_{0};
};
Reporter crash_reporter, terminate_reporter;

void say(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
  (void)ignored;
}

// Leaves the reason in the rank's state file, where the supervisor finds it, and on stderr. Async-signal-safe.
[[noreturn]] void end_with(Failure kind, int code, const char* message) {
  say("convoy-rank: ");
  say(message);
  say("\n");
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

// ---- SIGBUS --------------------------------------------------------------------------------------------------------

uintptr_t hexadecimal(const char*& at) {
  uintptr_t value = 0;
  for (;; ++at) {
    const char c = *at;
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<uintptr_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      value = value * 16 + static_cast<uintptr_t>(c - 'a' + 10);
    else
      return value;
  }
}

struct MappedAddress {
  char path[1024];
  uintptr_t offset;  // in the file
};

// False if a line of /proc/self/maps, "from-to permissions offset device inode path", does not describe `address`.
bool find_in_range(const char* line, uintptr_t address, MappedAddress& found) {
  const uintptr_t from = hexadecimal(line);
  if (*line++ != '-') return false;
  if (address < from || address >= hexadecimal(line)) return false;
  const char* path = strchr(line, '/');
  const char* offset = strchr(line + 1, ' ');
  if (path == nullptr || offset == nullptr) return false;
  found.offset = hexadecimal(++offset) + (address - from);
  strncpy(found.path, path, sizeof found.path - 1);
  found.path[sizeof found.path - 1] = '\0';
  return true;
}

// False where no file is mapped. Reads /proc/self/maps by system calls only: a signal handler may do that.
bool file_mapped_at(const void* address, MappedAddress& mapped) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  static char buffer[8192];  // of the one thread that reports
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
    if (have == sizeof buffer - 1) have = 0;  // a line that long has no path of a file
  }
  close(maps);
  return found;
}

// A file in memory still has the page, so the system had no room for it. Else the file became shorter.
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

// The launcher must see the signal itself.
void die_by(int signal_number) {
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void crashed(int signal_number, siginfo_t* info, void*) {
  if (!crash_reporter.is_this_thread()) return die_by(signal_number);
  if (signal_number == SIGBUS && info->si_code > 0) end_if_mapped(info->si_addr);
  // Stores into mapped memory, no more.
  if (rank_of_this_thread.file != nullptr) {
    rank_of_this_thread.file->phase(crashed_phase);
    if (failure_of_this_thread != nullptr) rank_of_this_thread.file->failure(failure_of_this_thread);
  }
  say("fatal: ");
  const char* name = sigabbrev_np(signal_number);
  say("SIG");
  say(name ? name : "?");
  if (place_of_this_thread != nullptr) {
    say(" in ");
    say(place_of_this_thread);
  }
  say("; backtrace of the thread that caused it:\n");
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  die_by(signal_number);
}

// ---- std::terminate ------------------------------------------------------------------------------------------------

std::terminate_handler terminate_before = nullptr;

void* do_nothing(void*) { return nullptr; }

// What the system refuses to this process, with the limit; "" where it has what it needs. An exception that ends a library's
// constructor half-way is not known here: then trying once more tells.
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

[[noreturn]] void terminated() {
  if (terminate_reporter.is_this_thread()) try {
      const std::string reason = refused_by_system();
      if (!reason.empty()) end_with(Failure::out_of_memory, exit_code::out_of_memory, reason.c_str());
    } catch (...) {
      end_with(Failure::out_of_memory, exit_code::out_of_memory, "out of memory on the host");
    }
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

void watch_terminate(int, char**, char**) { terminate_before = std::set_terminate(terminated); }

// LibTorch registers its operators before main(), and may find no memory for them. The sanitizers have an entry of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**, char**) = watch_terminate;
#endif

}  // namespace

CrashNote::CrashNote(const std::string& place) : place_(place) {
  Abort reason;
  reason.kind = Failure::training;
  reason.message = "in " + place;
  failure_ = to_json(reason).dump();
}

CrashPlace::CrashPlace(const CrashNote& note)
    : outer_place_(place_of_this_thread), outer_failure_(failure_of_this_thread) {
  place_of_this_thread = note.place_.c_str();
  failure_of_this_thread = note.failure_.c_str();
}

CrashPlace::~CrashPlace() {
  place_of_this_thread = outer_place_;
  failure_of_this_thread = outer_failure_;
}

void note_crashes_of_this_thread(StateFile* file, int rank) {
  if (file == nullptr && some_file == rank_of_this_thread.file) some_file = nullptr;
  StateFile* none = nullptr;
  if (file != nullptr) some_file.compare_exchange_strong(none, file);
  rank_of_this_thread = {file, rank};
  // A signal's stack is a thread's own; the main thread has one.
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

void install_crash_handlers() {
  // The first call loads libgcc, which allocates: not something to do in a handler.
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
}

}  // namespace convoy
