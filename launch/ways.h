// Which way an ensemble goes where its configuration leaves that open (strategy.how: auto). The plan decides, by the devices
// that there are and never by a measurement: ways round differently, and equal runs have to give equal bits.
// Threads: the event loop's.
#pragma once
#include <string>

#include "launch/prepare.h"

namespace convoy {

// A run that an earlier version began, which measured, goes on as it began: puts the way that ways.json of its folder names
// into `placed`, where that can still be planned here.
void keep_way(const PreparedRun& run, const std::string& folder, Placed& placed);

// {taken, because, tried: []} of a planned job, as summary.json has it; null where nothing was left open.
Json choice_of(const PreparedRun& run, const std::string& folder, const Job& job);

}  // namespace convoy
