// Which signals to stop are one request. A wrapper such as `timeout` signals its child and then the child's whole group,
// a terminal's Ctrl-C reaches every process of it and some pass it on: the same request comes twice, microseconds apart.
#pragma once
#include <chrono>
#include <optional>

namespace convoy {

class StopRequests {
 public:
  using Clock = std::chrono::steady_clock;
  // No person asks again so soon; whoever is in a hurry asks once more.
  static constexpr std::chrono::milliseconds same{500};

  enum class Kind { first, echo, again };
  Kind received(Clock::time_point now) {
    if (!first_) {
      first_ = now;
      return Kind::first;
    }
    return now - *first_ < same ? Kind::echo : Kind::again;
  }

 private:
  std::optional<Clock::time_point> first_;
};

}  // namespace convoy
