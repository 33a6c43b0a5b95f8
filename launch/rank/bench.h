// What `convoy bench` has the ranks of a job do instead of training: one operation, size by size, checked and timed.
//
// Each size is checked with numbers whose result every dtype holds exactly, before and after it is timed. Timed are
// several rounds of so many operations, one waited for after the other, that a round takes some 20 ms; the time of a round
// is that of its slowest rank. `send` gives to the next rank and receives from the one before it, both at once.
// Threads: the rank's own; all ranks of the job call alike. Failure: what the communicator throws.
#pragma once
#include "core/context.h"
#include "core/trainer.h"

namespace convoy {

// `request`: {operation, sizes (bytes), dtype}. Rank 0 posts each row when it is there (launch/bench_report.h tells its
// keys); the result's summary has all of them under "bench".
TrainingResult run_bench(const Context& context, const Json& request);

}  // namespace convoy
