// The job of `convoy bench`: the ranks run one operation at each size, check it and time it, instead of training.
//
// Each size is checked before and after it is timed, with numbers for which the result is exact in every dtype. A round
// repeats the operation for about 20 ms, waiting for each; its time is that of the slowest rank. There are several
// rounds. `send` sends to the next rank and receives from the previous one at the same time.
// Threads: the rank's thread; collective over the job. Failure: exceptions of the communicator.
#pragma once
#include <memory>

#include "core/context.h"
#include "core/control/channel.h"
#include "core/trainer.h"

namespace convoy {

// `request`: {operation, sizes (bytes), dtype}. Rank 0 posts each row when it is measured (keys:
// launch/diagnose/reports.h); the result's summary has all rows under "bench".
TrainingResult run_bench(const Context& context, const Json& request);

// `convoy-rank --calibrate`: runs one process of a calibration (launch/explain/calibration.h). It reads the request
// from the channel and stores its measurements there. All processes synchronise over the channel. Throws errors of the
// model, the data and the backend.
void calibrate(const std::shared_ptr<Channel>& channel, int process);

}  // namespace convoy
