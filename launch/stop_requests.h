// Tells which signals are one request to stop. A wrapper such as `timeout` signals its child and then the child's whole group,
// and a terminal's Ctrl-C reaches every process of it: the same request comes twice, microseconds apart.
#pragma once
#include <signal.h>

#include <chrono>
#include <optional>

namespace convoy {

class StopRequests {
 public:
  using Clock = std::chrono::steady_clock;
  // No person asks again so soon; whoever is in a hurry asks once more.
  static constexpr std::chrono::milliseconds same{500};

  enum class Kind { first, echo, again };
  // Only SIGTERM and SIGINT ask again: the kernel repeats SIGXCPU every second, and a terminal that closes sends SIGHUP to a
  // run that was asked before. SIGQUIT does not wait for a step.
  Kind received(Clock::time_point now, int signal) {
    if (signal == SIGQUIT) return Kind::again;
    if (!first_) {
      first_ = now;
      return Kind::first;
    }
    const bool asks = signal == SIGTERM || signal == SIGINT;
    return asks && now - *first_ >= same ? Kind::again : Kind::echo;
  }

 private:
  std::optional<Clock::time_point> first_;
};

}  // namespace convoy
