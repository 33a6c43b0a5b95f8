// Times exchanges of a backend among the ranks of a group. Collective.
#pragma once
#include <chrono>
#include <vector>

#include "core/communicator.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct ExchangeTimes {
  std::vector<double> seconds;  // one value per exchange, on this rank
  double busy = 0;              // CPU time of this process ÷ elapsed time
};

// Waits until the device has done its work; at once for a CPU.
void synchronise(const at::Device& device);

// `bytes`: bytes of the tensor that a rank sends in one exchange. Repeats for about `limit` seconds, equally often on
// every rank, at least three times.
ExchangeTimes time_exchange(Communicator& group, Exchange kind, int64_t bytes, double limit, at::Device device);

}  // namespace convoy
