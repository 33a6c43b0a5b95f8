// OverlapChoice: whether a data axis sends during computation or after it.
//
// Sending ahead gains time where the network works by itself. On cores, sums are computed by the core that trains, and
// overlapping may cost more than it hides. Unless the choice is configured, ranks on cores therefore measure both in
// their first updates, in turn, and take the faster one. The messages are the same, so results are equal bit for bit.
// RUN/overlap.json keeps the choice for a resumed run with the same ranks on the same host.
// Threads: one at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "core/context.h"

namespace convoy {

class OverlapChoice {
 public:
  // Collective over `group`. `measures`: false if there is nothing to measure; then it overlaps unless configured
  // otherwise. Rank 0 of the job writes the file; the summary of each rank gets the choice and the measured times.
  OverlapChoice(const Context& context, CommunicatorPtr group, std::optional<bool> configured, bool measures);

  bool overlaps() const { return overlaps_; }  // in the update that begins or runs
  // Call it before the update's first backward. The first call after the measured updates is collective. end_update is
  // not: a rank that loses a peer between the writes of an update and its count would make the update twice.
  void begin_update();
  void end_update();

 private:
  using Clock = std::chrono::steady_clock;
  Json take(const at::Tensor& seconds);  // `seconds`: without and with overlap; returns the choice for the summary
  void decide();

  const Context context_;
  CommunicatorPtr group_;
  bool overlaps_;
  bool measuring_;
  int updates_ = 0;  // that ended
  Clock::time_point begin_;
  std::array<std::vector<double>, 2> seconds_;  // by update: without and with overlap
};

}  // namespace convoy
