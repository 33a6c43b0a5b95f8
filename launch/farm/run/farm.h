// `convoy run` of a file that describes several runs: alone on this host, or inside one mpirun or srun; then the ranks
// are the slots.
#pragma once
#include <sys/types.h>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/files/files.h"
#include "launch/farm/config/farm.h"
#include "launch/farm/monitor/resources.h"
#include "launch/prepare/run_folder.h"
#include "launch/process/process.h"

namespace convoy {

// --- Folders inside a farm's run folder ---

// Creates the folder unless it exists. Error(output) if it cannot be created or is no folder; Error(refused) for a
// link.
void make_subfolder(const std::string& path);

// Returns a mistake if the pipeline's folder contains files that convoy did not write.
std::optional<ConfigError> occupied(const Pipeline& pipeline, const std::string& folder);
// Returns a mistake if an earlier farm ran the pipeline with another configuration. `summary`: of `folder`.
std::optional<ConfigError> differs(const Pipeline& pipeline, const std::string& folder, const Json& summary);

// Removes the lock of a killed run.
void remove_stale_lock(const std::string& folder);

struct LockOwner {
  bool held = false;
  pid_t pid = -1;  // -1: on another host, or not visible from here
};
// Owner of a run folder's lock, found without taking the lock.
LockOwner lock_owner(const std::string& run_folder);

// Refuses a folder that this user may not write. `what`: "run" or "farm".
void refuse_foreign(const std::string& folder, const char* what);

// Waits until the process that runs the folder has answered, has ended without an answer, or `seconds` have passed.
enum class Answer { given, ended, late };
Answer wait_for_answer(const std::string& run_folder, double seconds, const std::function<bool()>& is_given);

// --- End of a pipeline's attempt. Pure functions ---

// Reason for which the farm ended a pipeline.
enum class StopReason {
  none,     // ended without the farm
  preempt,  // a pipeline of higher priority needs its slot
  timeout,
  memory,
  stopped  // the farm got a request to stop
};

struct AttemptResult {
  enum class Outcome { done, paused, preempted, stopped, failed } outcome = Outcome::failed;
  bool retryable = false;  // another attempt may succeed
  int exit_code = 0;
  std::string cause;    // cause of a failure, as in summary.json, or "memory", "timeout"
  std::string message;  // for people
};

// `detail`: explains `reason`, such as the measurement above a memory limit. `summary`: of the pipeline's folder, as
// its `convoy` left it. `limit_key`: key of the limit on its ranks' allocators, "" for none; with it, out of memory has
// cause `memory`. `last_message`: printed by its `convoy`; the message of a failure without a summary.
AttemptResult classify(const ProcessEnd& end, StopReason reason, const std::string& detail, const Json& summary,
                       const std::string& limit_key = "", const std::string& last_message = "");

// Returns `summary`, completed with the failure if a killed `convoy` could not write it.
Json with_failure(Json summary, const std::string& name, const AttemptResult& result);

// --- State of the pipelines, and the interface that starts, watches and ends them ---
//
// On this host, or through the agents of a launcher's ranks.

struct PipelineState {
  // paused: it has reached a rung of strategy.halving, and others have not; lost: it was one of the worse there.
  enum class Status { waiting, running, paused, done, lost, failed, stopped };

  Pipeline pipeline;
  ResourceRequest request;
  std::string folder;  // absolute
  Status status = Status::waiting;
  int starts = 0;                                  // total, including earlier farms in this folder
  int64_t failures = 0;                            // consecutive failed attempts of this farm
  AttemptResult result;                            // result of the last attempt
  double seconds = 0;                              // duration of all attempts of this farm
  std::vector<std::optional<double>> rung_values;  // strategy.metric at the rungs of strategy.halving that it reached
  int lost_at = -1;                                // rung; -1: none
  Interval pause;                                  // point of the rung for which it runs; never: it runs to its end
  // While it runs:
  Allocation allocation;
  double started = 0;  // unix seconds
  StopReason stop_reason = StopReason::none;
  std::string detail;        // explains `stop_reason`, for people
  std::string last_message;  // printed by its `convoy`
};
bool is_over(PipelineState::Status status);         // no attempt of this farm follows
const char* name_of(PipelineState::Status status);  // as in summary.json and the leaderboard

// An item of summary.json: {name, status, exit_code, attempts, cause, message, folder, metrics}; with halving also
// `stage`, the rung at which it was lost. `summary`: of the pipeline's own folder.
Json to_json(const PipelineState& entry, const Json& summary);

struct LaunchSpec {
  int job = 0;  // the supervisor's number for it
  std::string name;
  std::string folder;  // its run folder, absolute; contains its configuration, pipeline.yaml
  std::vector<int> cores;
  std::vector<std::string> gpus;  // UUIDs
  bool hide_gpus = false;         // the host has GPUs and the pipeline gets none
  int64_t memory = 0;             // bytes; 0: no limit
  int64_t gpu_memory = 0;
  int nice = 0;
  std::vector<std::string> inject;  // faults, as typed
};
CONVOY_JSON(LaunchSpec, job, name, folder, cores, gpus, hide_gpus, memory, gpu_memory, nice, inject)
// Limit in bytes on the memory of all GPUs of the pipeline together, with memory outside the allocators. The launcher
// kills a pipeline above it. 0: none.
int64_t watched_gpu_memory(const LaunchSpec& spec);

struct LauncherEvents {
  std::function<void(int job, pid_t pid)> on_started;
  std::function<void(int job, const std::string& line)> on_line;
  std::function<void(int job, const ProcessEnd& end, const ResourceSample& used)> on_end;
  std::function<void(const std::vector<ResourceSample>&)> on_samples;
  std::function<void(int job, const std::string& what)> on_over_limit;                 // after the launcher killed it
  std::function<void(int job, int exit_code, const std::string& message)> on_refused;  // it could not be started
};

class PipelineLauncher {
 public:
  virtual ~PipelineLauncher() = default;  // kills running pipelines
  // `slot`: index into Inventory::slots of the first allocated slot. Reports the result by on_started or on_refused,
  // perhaps before it returns.
  virtual void start(int slot, const LaunchSpec& spec) = 0;
  virtual void ask_to_stop(int job) = 0;  // it writes a checkpoint after its step and ends with 143
  virtual void kill(int job) = 0;         // with all its descendants
};

// --- The command ---

// Returns 0 if all pipelines are done, 1 if some failed, 143 after a request to stop. Throws mistakes found before the
// start.
int run_farm(FarmRun run);

// Inside one mpirun or srun the launcher's ranks are the slots. The `convoy` of rank 0 serves the control
// channel and owns the queue. The `convoy` of every rank, rank 0 included, is the agent of its slot: it starts
// pipelines there. The slots use the control channel, and never call MPI_Init: every pipeline is a separate
// run that chooses its backend as on one host.
//
// Runs this process as the rank that `run.as` names. Returns the exit code of the whole farm, on every rank.
int run_in_slots(FarmRun& run);

RunFolderRequest farm_folder(const FarmRun& run);

// --- Files by which a farm's processes inform each other: the inbox and the journal in its run folder ---

// RUN/inbox: pipelines to add to a running farm. `convoy add` renames NAME.yaml into it. The farm renames the file to
// NAME.yaml.taken, or replaces it by NAME.yaml.refused, which contains the reason and a last line "exit code N".
// `convoy cancel` and `convoy priority` write TOKEN.request in the same way: {"name": name, "cancel": true} or
// {"name": name, "priority": n}. They remove the answer.
class Inbox {
 public:
  explicit Inbox(const std::string& run_folder);  // creates the folder; Error(output)

  std::vector<std::string> arrived();      // paths, sorted by name, pipelines first; cheap while nothing has changed
  std::vector<std::string> taken() const;  // paths of files taken earlier
  static bool is_request(const std::string& path);
  void take(const std::string& path) const;
  void refuse(const std::string& path, const Error& reason) const;
  // The error that refuse() has written; null if there is none yet.
  static std::unique_ptr<Error> refusal(const std::string& path);

 private:
  std::string folder_;
  struct timespec changed_ {};
  bool may_have_changed_ = true;  // changed_ is so recent that a later change may have the same time stamp
};

// RUN/journal.jsonl: what happened to each pipeline, one JSON object per line. An event is appended before the farm
// acts on it, so a killed farm loses none. sync() is called every second, so a power failure loses little. `convoy top`
// reads it, and a resumed farm counts each pipeline's starts in it.
//
//   {"time": unix seconds, "pipeline": name, "event": queued | started | preempted | retry | paused | lost | done |
//    failed | cancelled | priority, "attempt": n, …}
//   started: "pid" (of the child `convoy`), "host", "slot", "cores": […], "gpus": […], "priority"
//   preempted, retry, failed, cancelled: "exit_code", "cause", "message"; retry: also "after" (seconds); cancelled:
//   also "by_request" for `convoy cancel`
//   paused: "rung", "value" (null: it has no such metric); lost: "rung"
class Journal {
 public:
  // Opens the file, and ends a line that a killed farm left incomplete. Error(io).
  explicit Journal(const std::string& run_folder);

  // `details` follow time, pipeline, event and attempt. Error(io) if the line cannot be written.
  void write(const std::string& pipeline, const std::string& event, int attempt, const Json& details = Json::object());
  void sync();  // flushes written lines to the disk; Error(io)

 private:
  std::string path_;
  Descriptor file_;
  bool written_ = false;  // since the last sync
};

// Records of a pipeline by earlier farms in a folder.
struct JournalRecord {
  int starts = 0;
  std::vector<std::optional<double>> rung_values;
  int lost_at = -1;        // rung; -1: none
  bool cancelled = false;  // by `convoy cancel`, and not started since
  std::string event;       // the last one, except `priority`
};
// By name of the pipeline; empty without a journal.
std::map<std::string, JournalRecord> read_journal(const std::string& run_folder);

}  // namespace convoy
