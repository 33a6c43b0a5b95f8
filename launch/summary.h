// summary.json: what a run did, for people and programs. Written by the `convoy` that serves, whole or not at all.
#pragma once
#include <optional>
#include <string>

#include "core/control/channel.h"
#include "core/files.h"
#include "core/options.h"
#include "launch/gang.h"

namespace convoy {

// What is known when a run starts. `status` is "running".
// `placement`: where each rank is and why (to_json of the table); empty until that is known.
Json starting_summary(const Json& resolved, const Job& job, int attempt, const Json& placement = Json::array());

// The end: status (done, failed, or stopped where somebody asked for it) and exit code, what the ranks measured, and the failure or null. Every key of DESIGN.md is there.
// Of what each rank measured for itself the top has the largest; cpu_efficiency lists all.
Json finished_summary(Json summary, const GangOutcome& outcome, std::optional<double> startup_seconds);

Json failure_json(const Abort& cause);

// {} when there is none, or none that can be read, or somebody else's.
Json read_summary(const std::string& folder);
// The first key of an object that has another type than any convoy gives it; "" where it may be a summary.
std::string foreign_key(const Json& summary);
std::string summary_text(const Json& summary);
// Error(io) naming the file. Flushed to the disk before the rename, so that no crash leaves an empty file. While the
// status is "running" this process keeps room on the disk, so that the end is told although the run has filled it. One
// thread.
void write_summary(const std::string& folder, const Json& summary);

}  // namespace convoy
