// summary.json: the result of a run for people and programs. The supervisor writes it atomically.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/config/job_plan.h"
#include "core/control/channel.h"
#include "core/files/files.h"

namespace convoy {

// Topic (Channel::post) of a failed save. The supervisor counts these messages as `failed_saves` in the summary, also
// if the run fails.
inline constexpr char failed_saves_topic[] = "failed_saves";

// Result of the job.
struct JobOutcome {
  int exit_code = 0;
  std::optional<Abort> cause;    // the failure cause, or the stop
  Json result = Json::object();  // result of rank 0
  std::map<int, Json> ranks;     // info and result of each rank
  double wall_seconds = 0;       // wall time of the whole run; 0: unknown
  double after_seconds = 0;      // passed since the ranks reported their results
  Json stall;                    // null, or the positions of all ranks at a stall (stall_json)
};

// Summary with the status "running". `placement`: to_json of the placement table; empty before planning.
Json starting_summary(const Json& resolved, const JobPlan& job, int attempt, const Json& placement);

Json ranks_json(const std::map<int, Json>& ranks);  // `ranks` of summary.json
// Adds the end: status (done, failed, stopped), exit code, results of the ranks, and the failure or null. A number that
// every rank measures gets its largest value; cpu_efficiency lists all values.
Json finished_summary(Json summary, JobOutcome outcome, std::optional<double> startup_seconds);

Json failure_json(const Abort& cause);

// Returns {} if the file is missing, unreadable, or not a summary of convoy.
Json read_summary(const std::string& folder);
// Returns the first key with a type that convoy never writes; "" if the object may be a summary.
std::string foreign_key(const Json& summary);
// Returns a field of a JSON object from a file. Returns `fallback` if it is missing or has a different type, because
// other versions may differ.
double number_in(const Json& json, const char* key, double fallback);
// The same for an integer. Also returns `fallback` for a number beyond 2^53, which no field has.
int64_t whole_in(const Json& json, const char* key, int64_t fallback);
std::string text_in(const Json& json, const char* key, const std::string& fallback = "");
// Status of the run in a folder, by its summary. A run whose status is `running` and whose folder no process locks was
// killed: its status is `ended`.
std::string run_status(const std::string& folder, const Json& summary);
std::string summary_text(const Json& summary);
// Writes to the disk and renames, so that a crash leaves no empty file. While the status is "running", this process
// reserves disk space, so that the final summary fits on a full disk. Error(io) names the file. Threads: one.
void write_summary(const std::string& folder, const Json& summary);

// --- `breakdown` of summary.json: the wall time of each rank by part, with advice. Pure functions ---

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
