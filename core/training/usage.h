// ResourceUsage: time, CPU time and bytes that this rank used, for its part of the summary.
// Threads: the rank's thread.
#pragma once
#include <cstdint>

#include "core/base/json.h"
#include "core/context.h"

namespace convoy {

// Resources used up to a moment, or between two moments. CPU time is that of the process.
struct ResourceUsage {
  double wall = 0, cpu = 0, supervision_cpu = 0, waits = 0, wait_cpu = 0;  // seconds
  int64_t bytes = 0;                                                       // sent

  static ResourceUsage now(const Context& context);
  ResourceUsage operator-(const ResourceUsage& before) const;
};

// Seconds that a training spent on its data.
struct DataTime {
  double waited = 0, cpu = 0;
};

// This rank's part of the summary; `loop`: usage of the `steps` steps of the loop.
Json rank_statistics(const Context& context, const ResourceUsage& loop, int64_t steps, const DataTime& data);
// Collective. Adds to the job's summary the value of the slowest or busiest rank, so that one number shows a problem.
void add_statistics(const Context& context, const Json& rank, Json& summary);

}  // namespace convoy
