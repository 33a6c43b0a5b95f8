// OverlapChoice: whether a data axis sends during computation or after it.
//
// Sending ahead gains time where the network works by itself. On cores, sums are computed by the core that trains, and
// overlapping may cost more than it hides. Unless the choice is configured, ranks on cores therefore measure both in
// their first updates, in turn, and take the faster one. The messages are the same, so results are equal bit for bit.
// Threads: one at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "core/base/json.h"
#include "core/communicator.h"

namespace convoy {

class OverlapChoice {
 public:
  // `measures`: false if there is nothing to measure; then it overlaps unless configured otherwise. `report`:
  // Context::add_to_summary, which gets a measured choice.
  OverlapChoice(std::optional<bool> configured, bool measures, CommunicatorPtr group,
                std::function<void(const Json&)> report);

  bool overlaps() const { return overlaps_; }  // in the update that begins or runs
  // Call it before the update's first backward. The first call after the measured updates is collective. end_update is
  // not: a rank that loses a peer between the writes of an update and its count would make the update twice.
  void begin_update();
  void end_update();

 private:
  using Clock = std::chrono::steady_clock;
  void decide();

  CommunicatorPtr group_;
  std::function<void(const Json&)> report_;
  bool overlaps_;
  bool measuring_;
  int updates_ = 0;  // that ended
  Clock::time_point begin_;
  std::array<std::vector<double>, 2> seconds_;  // by update: without and with overlap
};

}  // namespace convoy
