// `breakdown` of summary.json: the wall time of each rank by part, with advice. Pure functions.
#pragma once
#include <map>
#include <string>

#include "core/base/json.h"

namespace convoy {

// Combines the reports of the ranks (core/training/time_report.h), and removes them from `ranks`. Null if no rank has
// one, for example after a failure. `wall`: seconds of the whole run; 0: those of the longest rank. `after`: seconds
// since the ranks reported. Time before a rank's measurement counts as its start-up, time after its report as other.
Json take_breakdown(std::map<int, Json>& ranks, double wall, double after);

// Returns advice for a finished run, if one change of the configuration may save a tenth of its wall time; else "".
std::string time_advice(const Json& summary);

// "rank 0: backward 41 %, forward 30 %, start-up 9 %, …", without parts below one percent. `rank`: the rank of `parts`.
std::string time_text(const Json& parts, int rank, double wall);
// The line for the end of a run, with the advice; "" without a breakdown.
std::string breakdown_line(const Json& summary);

}  // namespace convoy
