// What a rank process leaves behind when a signal ends it: a backtrace on stderr (the launcher keeps it in logs/rankN.log).
#pragma once

namespace convoy {
// SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT: print a backtrace, then die of the same signal. Async-signal-safe.
void install_crash_handlers();
}  // namespace convoy
