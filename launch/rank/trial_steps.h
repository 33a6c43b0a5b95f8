// A few steps of a training, timed on all ranks at once and then forgotten: what launch/trial.h compares ways by.
// Threads: one rank's. Failure: what the strategy, the data or communication throws.
#pragma once
#include "core/trainer.h"

namespace convoy {

// `request`: {seconds: how long to measure}. `parts.strategy` is set up, and trained by it. The summary has seconds_per_step,
// of the slowest rank, and trial_steps.
TrainingResult run_trial(const Context& context, const TrainingParts& parts, const TrainingLength& length,
                         const Json& request);

}  // namespace convoy
