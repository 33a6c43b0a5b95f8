// UpdateCount: how many updates so many steps make. `every` steps make one update; the last steps of an epoch make one
// of their own, however few they are. Schedules count updates.
#pragma once
#include <algorithm>
#include <cstdint>

namespace convoy {

struct UpdateCount {
  int64_t steps_per_epoch = 1;
  int64_t every = 1;

  int64_t of(int64_t steps) const {
    const int64_t epoch = std::max<int64_t>(steps_per_epoch, 1);
    return steps / epoch * rounded_up(epoch) + rounded_up(steps % epoch);
  }

 private:
  int64_t rounded_up(int64_t steps) const { return (steps + every - 1) / every; }
};

}  // namespace convoy
