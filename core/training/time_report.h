// Reports of a rank about its time and its resources, for summary.json and the supervisor.
#pragma once
#include <cstdint>

#include "core/base/json.h"
#include "core/context.h"

namespace convoy {

// Seconds of this rank by part, up to now: {"start_up": 1.2, "data": 0.1, …}.
Json time_parts_of(const Context& context);

// Estimates how far the clock of the control channel's server is ahead of this host's.
void measure_clock(const Context& context);

// Collective; call it once, at the end. Compares the arrivals of all ranks at collectives. Returns {"times": as
// time_parts_of, "waits_for": [{rank, seconds}, …]}, largest first.
Json time_report(const Context& context);

// Resources of this rank: {rank, memory_bytes, cpu_s, times: as time_parts_of}. Ranks that share a process divide what
// it uses.
Json resource_report(const Context& context);

}  // namespace convoy
