// StopAgreement: all ranks stop after the same step, without a collective.
//
// On a stop request, the channel thread of each rank names the step before which its rank will wait. The rank waits
// there until all have named one; all stop at the largest. Ranks below it continue to it, so no collective lacks a
// peer.
#pragma once
#include <cstdint>
#include <memory>

#include "core/control/channel.h"

namespace convoy {

class StopAgreement {
 public:
  StopAgreement(std::shared_ptr<Channel> channel, int rank, int size, Timeout timeout);
  ~StopAgreement();
  // Call it on the rank's thread before step `step` of its work (from 0, each once): a training step, or a batch of
  // an evaluation, counted equally on all ranks. Returns true if all ranks stop before this step or stopped before an
  // earlier one; false: do the step.
  bool stops_before(int64_t step);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace convoy
