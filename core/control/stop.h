// How all ranks stop after the same step, without a collective and without waiting for each other in one.
//
// On a request each rank's channel thread names the boundary at which its rank will hold, and the rank holds there until
// all have answered; the largest is where all stop. Ranks below it go on to it, so no collective is left without peers.
#pragma once
#include <cstdint>
#include <memory>

#include "core/control/channel.h"

namespace convoy {

class StopAgreement {
 public:
  StopAgreement(std::shared_ptr<Channel> channel, int rank, int size, Timeout timeout);
  ~StopAgreement();
  // Called by the rank's thread before part `step` of its work (from 0, each once): a step of training, or a batch of an
  // evaluation, which every rank counts alike. True: all stop before this one or an earlier one that every rank has done;
  // false: do it.
  bool stops_before(int64_t step);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace convoy
