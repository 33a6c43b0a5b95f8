#include "core/control/signals.h"

#include <signal.h>

namespace convoy {
namespace {

void ignore_signal(int) {}

void disarm(int signal) {
  struct sigaction action {};
  if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = ignore_signal;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void set_signal_actions() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGCHLD, SIG_DFL);
  for (const int number : {SIGXFSZ, SIGIO, SIGPROF, SIGSTKFLT}) disarm(number);
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) disarm(number);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::vector<int> stop_signals() {
  std::vector<int> signals;
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGXCPU, SIGPWR})
    if (!is_ignored(number)) signals.push_back(number);
  return signals;
}

}  // namespace convoy
