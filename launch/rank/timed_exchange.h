// What one backend takes to exchange messages among the ranks of a group: all of them call alike.
#pragma once
#include <string>
#include <vector>

#include "core/communicator.h"
#include "strategies/catalogue.h"

namespace convoy {

struct ExchangeTimes {
  std::vector<double> seconds;  // of each exchange, on this rank
  double busy = 0;              // processor time of this process ÷ time
};

// `bytes`: what a rank sends of one exchange between two (of an all-reduce: its tensor). Repeats for about `limit` seconds,
// as many times on every rank, at least thrice.
ExchangeTimes time_exchange(Communicator& group, Exchange kind, int64_t bytes, double limit, at::Device device);

}  // namespace convoy
