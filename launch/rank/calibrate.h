// `convoy-rank --calibrate`: what launch/measurement.h asks the ranks of a calibration to measure, and how they do it.
#pragma once
#include <memory>

#include "core/control/channel.h"

namespace convoy {

// One process of a calibration: does its part of the request that the channel has, and leaves its figures there. All
// processes keep step over the channel. Throws what the model, the data or the backend threw.
void calibrate(const std::shared_ptr<Channel>& channel, int process);

}  // namespace convoy
