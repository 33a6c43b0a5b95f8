#include "launch/rank/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <memory>

#include "core/control/channel.h"
#include "core/control/phases.h"

namespace convoy {
namespace {

// A stack of its own, so that an overflow of the normal one can still be told.
alignas(16) char signal_stack[64 * 1024];

thread_local StateFile* rank_of_this_thread = nullptr;
thread_local std::unique_ptr<char[]> stack_of_this_thread;
thread_local const char* place_of_this_thread = nullptr;    // of the innermost CrashPlace
thread_local const char* failure_of_this_thread = nullptr;  // the same as an Abort

void say(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
  (void)ignored;
}

void crashed(int signal_number) {
  // Stores into mapped memory, no more.
  if (rank_of_this_thread != nullptr) {
    rank_of_this_thread->phase(crashed_phase);
    if (failure_of_this_thread != nullptr) rank_of_this_thread->failure(failure_of_this_thread);
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
  // SA_RESETHAND has put the default action back: the launcher must see the signal itself.
  raise(signal_number);
}

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

void note_crashes_of_this_thread(StateFile* file) {
  rank_of_this_thread = file;
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
  action.sa_handler = crashed;
  action.sa_flags = SA_RESETHAND | SA_ONSTACK | SA_NODEFER;
  for (int signal_number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigaction(signal_number, &action, nullptr);
}

}  // namespace convoy
