// ResourceUsage: time, CPU time and bytes that this rank used, for the summary.
// Threads: the rank's thread.
#pragma once
#include <cstdint>

#include "core/base/json.h"
#include "core/context.h"

namespace convoy {

// Resources used up to a moment, or between two moments. CPU time covers the whole process.
struct ResourceUsage {
  double wall = 0, cpu = 0, supervision_cpu = 0, waits = 0, wait_cpu = 0;  // seconds
  int64_t bytes = 0;                                                       // bytes sent

  static ResourceUsage now(const Context& context);
  ResourceUsage operator-(const ResourceUsage& before) const;
};

// Seconds that a training spent on its data.
struct DataTime {
  double waited = 0, cpu = 0;
};

// Returns this rank's part of the summary; `loop`: usage of the `steps` steps of the loop.
Json rank_statistics(const Context& context, const ResourceUsage& loop, int64_t steps, const DataTime& data);
// Collective. Adds the value of the slowest or busiest rank to the job's summary, so that one number shows a problem.
void add_statistics(const Context& context, const Json& rank, Json& summary);

}  // namespace convoy
