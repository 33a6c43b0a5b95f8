// OverlapChoice: whether a data axis sends during computation or after it.
//
// Sending ahead gains time where the network works by itself. On cores, sums are computed by the core that trains, and
// overlapping may cost more than it hides. Unless the choice is configured, ranks on cores therefore measure both in
// their first updates, in turn, and take the faster one. The messages are the same, so results are equal bit for bit.
// If all ranks are in one group, RUN/overlap.json keeps the choice: a resumed run with the same layout of ranks takes
// it.
// Threads: one at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/context.h"

namespace convoy {

class OverlapChoice {
 public:
  // Collective over `group`. `measures`: false if there is nothing to measure; then it overlaps unless configured
  // otherwise. `number`: number of data axes that this job made before. The summary of each rank gets the choice and
  // the measured times.
  OverlapChoice(const Context& context, CommunicatorPtr group, std::optional<bool> configured, bool measures,
                int number);

  bool overlaps() const { return overlaps_; }  // in the update that begins or runs
  // Call it before the update's first backward. The first call after the measured updates is collective. end_update is
  // not: a rank that loses a peer between the writes of an update and its count would make the update twice.
  void begin_update();
  void end_update();

 private:
  using Clock = std::chrono::steady_clock;
  // `seconds`: without and with overlap. `when`: end of the log line. Returns the choice for the summary.
  Json take(const at::Tensor& seconds, const char* when);
  void decide();

  const Context context_;
  CommunicatorPtr group_;
  std::string file_, layout_;  // empty: the choice is not kept
  bool overlaps_;
  bool measuring_;
  int updates_ = 0;  // that ended
  Clock::time_point begin_;
  std::array<std::vector<double>, 2> seconds_;  // by update: without and with overlap
};

}  // namespace convoy
