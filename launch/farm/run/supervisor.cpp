#include "launch/farm/run/supervisor.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "core/base/text.h"
#include "core/control/exit_codes.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"
#include "launch/farm/report/report.h"
#include "launch/farm/run/farm.h"
#include "launch/job/console.h"
#include "launch/job/restart.h"
#include "launch/job/run_attempt.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds tick_interval{500};
constexpr uint64_t sync_every = 2;      // ticks between flushes of the journal to the disk
constexpr double kill_slack = 1.5;      // seconds beyond its grace period that a pipeline has to end
constexpr size_t log_limit = 4u << 20;  // bytes of the log of a pipeline's `convoy`; the ranks have other logs
constexpr char fault_separator = '/';   // --inject NAME/FAULT
constexpr char message_prefix[] = "convoy: ";
constexpr size_t longest_message = 1000;  // characters in a summary
constexpr char cancelled_reason[] = "cancelled by `convoy cancel`";

std::string memory_limit_key(const QueueOptions& options) { return options.gpu_memory > 0 ? "gpu_memory" : ""; }

double grace_of(const PipelineState& entry) { return entry.pipeline.config.at("launch").at("grace").get<double>(); }

// Marks a waiting pipeline as stopped.
void cancel_if_waiting(PipelineState& entry,
                       const std::string& reason = "the farm was asked to stop before it started") {
  if (entry.status != PipelineState::Status::waiting && entry.status != PipelineState::Status::paused) return;
  entry.status = PipelineState::Status::stopped;
  entry.result = {AttemptResult::Outcome::stopped, true, exit_code::stopped, name_of(Failure::stopped), reason};
}

}  // namespace

FarmSupervisor::FarmSupervisor(EventLoop& loop, FarmRun& run, RunFolder folder, Cluster cluster)
    : loop_(loop),
      run_(run),
      folder_(std::move(folder)),
      cluster_(std::move(cluster)),
      console_(loop, 1, run.as.launcher == Launcher::none),
      journal_(folder_.path),
      resources_(folder_.path),
      inbox_(folder_.path),
      queue_(cluster_.inventory, run.farm.max_parallel),
      before_(read_journal(folder_.path)),
      tasks_(loop) {
  for (const std::string& note : folder_.notes) console_.log(note);
  for (const std::string& warning : run_.warnings) console_.log(warning);
  for (const Pipeline& pipeline : run_.farm.pipelines) add(pipeline);
  check_folders();
  resume_added();
}

void FarmSupervisor::add(Pipeline pipeline) {
  PipelineState entry;
  entry.request = request_of(pipeline, cluster_, run_.farm.max_parallel);
  entry.folder = folder_.path + "/pipelines/" + pipeline.name;
  if (const auto found = before_.find(pipeline.name); found != before_.end()) {
    entry.starts = found->second.starts;
    entry.rung_values = found->second.rung_values;
    entry.lost_at = found->second.lost_at;
    if (found->second.cancelled) cancel_if_waiting(entry, cancelled_reason);
    if (entry.lost_at >= 0) entry.status = PipelineState::Status::lost;
  }
  entry.pipeline = std::move(pipeline);
  pipelines_.push_back(std::move(entry));
}

// Adds the pipelines that `convoy add` submitted to an earlier farm in this folder.
void FarmSupervisor::resume_added() {
  for (const std::string& path : inbox_.taken()) {
    try {
      Pipeline pipeline = read_pipeline(path);
      const bool known = std::any_of(pipelines_.begin(), pipelines_.end(),
                                     [&](const PipelineState& entry) { return entry.pipeline.name == pipeline.name; });
      if (known) continue;
      add(std::move(pipeline));
      if (read_summary(pipelines_.back().folder).value("status", "") == "done")
        pipelines_.back().status = PipelineState::Status::done;
    } catch (const Error& error) {
      console_.log(str(path, " was added before, but now it cannot be read: ", error.what()));
    }
  }
}

void FarmSupervisor::check_folders() {
  std::vector<ConfigError> mistakes;
  make_subfolder(folder_.path + "/pipelines");
  for (PipelineState& entry : pipelines_) {
    if (auto mistake = occupied(entry.pipeline, entry.folder)) mistakes.push_back(std::move(*mistake));
    const Json summary = read_summary(entry.folder);
    if (const auto mistake = differs(entry.pipeline, entry.folder, summary)) mistakes.push_back(*mistake);
    if (summary.value("status", "") == "done") entry.status = PipelineState::Status::done;
  }
  refuse_all(mistakes);
}

void FarmSupervisor::start(PipelineLauncher& launcher) {
  launcher_ = &launcher;
  seconds_before_ = farm_seconds(folder_.path, read_summary(folder_.path));
  write_whole(folder_.path + "/config.yaml", to_yaml(run_.resolved), false);
  Json started = summary(nullptr);
  started["started"] = unix_seconds();
  write_summary(folder_.path, started);
  const auto done = std::count_if(pipelines_.begin(), pipelines_.end(), [](const PipelineState& entry) {
    return entry.status == PipelineState::Status::done || entry.status == PipelineState::Status::lost;
  });
  scheduling_ = true;  // no pipeline starts before all are queued
  for (size_t job = 0; job < pipelines_.size(); ++job) {
    if (pipelines_[job].status != PipelineState::Status::waiting) continue;
    if (halves())
      pipelines_[job].status = PipelineState::Status::paused;
    else
      queue(static_cast<int>(job));
  }
  advance_rungs();
  scheduling_ = false;
  sync_journal();
  console_.log(str(counted(pipelines_.size(), "pipeline"),
                   done > 0 ? str(" (", done, done == 1 ? " is" : " are", " done already)") : "", ", ",
                   counted(cluster_.inventory.slots.size(), "slot"),
                   run_.farm.max_parallel > 0 ? str(", at most ", run_.farm.max_parallel, " at a time") : ""));
  check_inbox();
  schedule();
  tasks_.after(tick_interval, [this] { tick(); });
}

void FarmSupervisor::queue(int job) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  // A pipeline added to an earlier farm may need more than this farm has.
  if (!queue_.possible(entry.request))
    return refused(job, exit_code::config,
                   str("needs ", counted(entry.request.cores, "core"),
                       entry.request.gpus > 0 ? " and " + counted(entry.request.gpus, "GPU") : "",
                       " of one host, and no host of this farm (", counted(cluster_.inventory.slots.size(), "slot"),
                       ") has them; start it again with more"));
  entry.status = PipelineState::Status::waiting;
  record(entry, "queued");
  queue_.add(job, entry.request);
}

void FarmSupervisor::tick() {
  check_inbox();
  if (++ticks_ % sync_every == 0) sync_journal();
  console_.progress({{"text", farm_progress(pipelines_)}});
  tasks_.after(tick_interval, [this] { tick(); });
}

// Applies a request of `convoy cancel` or `convoy priority`. Throws the reason for which it is impossible.
void FarmSupervisor::apply_request(const std::string& path) {
  const Json request = parsed_json(read_file(path));
  if (!request.is_object() || !request.contains("name"))
    throw Error(Failure::config, path, ": is no request of `convoy cancel` or `convoy priority`");
  const std::string name = request.at("name");
  const auto found = std::find_if(pipelines_.begin(), pipelines_.end(),
                                  [&](const PipelineState& entry) { return entry.pipeline.name == name; });
  if (found == pipelines_.end()) {
    std::vector<std::string> names;
    for (const PipelineState& entry : pipelines_) names.push_back(entry.pipeline.name);
    const std::string near = nearest(name, names);
    throw Error(Failure::command_line, "this farm has no pipeline ", name, "; ",
                near.empty() ? "`convoy top` lists them" : "did you mean " + near + "?");
  }
  if (is_over(found->status)) throw Error(Failure::output, name, " has ended already: ", name_of(found->status));
  const int job = static_cast<int>(found - pipelines_.begin());
  if (request.value("cancel", false)) return cancel(job);
  const int64_t priority = request.at("priority");
  found->pipeline.options.priority = found->request.priority = priority;
  queue_.set_priority(job, priority);
  record(*found, "priority", {{"priority", priority}});
  console_.log(str(name, ": has priority ", priority, " now"));
}

void FarmSupervisor::cancel(int job) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  const std::string reason = cancelled_reason;
  console_.log(str(entry.pipeline.name, ": ", reason));
  if (entry.status == PipelineState::Status::waiting || entry.status == PipelineState::Status::paused) {
    queue_.drop(job);
    cancel_if_waiting(entry, reason);
    record(entry, "cancelled",
           {{"exit_code", entry.result.exit_code},
            {"cause", entry.result.cause},
            {"message", reason},
            {"by_request", true}});
    return advance_rungs();
  }
  if (entry.stop_reason == StopReason::none) return end_pipeline(job, StopReason::stopped, reason);
  if (entry.stop_reason == StopReason::preempt) {  // it stops already
    entry.stop_reason = StopReason::stopped;
    entry.detail = reason;
  }
}

void FarmSupervisor::check_inbox() {
  if (stopping_) return;
  bool any = false;
  for (const std::string& path : inbox_.arrived()) {
    try {
      if (Inbox::is_request(path)) {
        apply_request(path);
        inbox_.take(path);
        any = true;
        continue;
      }
      if (halves())
        throw Error(Failure::config, path,
                    ": this farm has strategy.halving, which compares the pipelines of its start; ",
                    "start another farm for more");
      Farm alone;
      alone.max_parallel = run_.farm.max_parallel;
      // Pipelines that have not ended, and list devices or have memory limits, may conflict with the new one.
      for (const PipelineState& entry : pipelines_) {
        const QueueOptions& options = entry.pipeline.options;
        const bool named =
            !options.core_list.empty() || !options.gpu_list.empty() || options.memory > 0 || options.gpu_memory > 0;
        const bool ended = entry.status == PipelineState::Status::done || entry.status == PipelineState::Status::failed;
        if (named && !ended) alone.pipelines.push_back(entry.pipeline);
      }
      alone.pipelines.push_back(read_pipeline(path));
      refuse_all(check_requests(alone, cluster_, rank_program(), alone.pipelines.size() - 1));
      const Pipeline& pipeline = alone.pipelines.back();
      for (const PipelineState& entry : pipelines_)
        if (entry.pipeline.name == pipeline.name)
          throw Error(Failure::config, path, ": name: is '", pipeline.name,
                      "', the name of another pipeline of this farm");
      add(pipeline);
      record(pipelines_.back(), "queued");
      inbox_.take(path);
      queue_.add(static_cast<int>(pipelines_.size() - 1), pipelines_.back().request);
      console_.log(str(pipeline.name, ": added to the queue"));
      any = true;
    } catch (const Error& error) {
      console_.log(str(Inbox::is_request(path) ? "refused: " : "not added: ", error.what()));
      inbox_.refuse(path, error);
    }
  }
  if (any) schedule();
}

// Starts pipelines on free slots. A start that fails at once calls this again; `scheduling_` ends the recursion.
void FarmSupervisor::schedule() {
  if (scheduling_ || stopping_) return;
  scheduling_ = true;
  const double now = unix_seconds();
  while (const auto allocation = queue_.next(now)) begin(*allocation);
  for (int job : queue_.preempt(now))
    end_pipeline(job, StopReason::preempt, "a pipeline of higher priority needs its slot");
  scheduling_ = false;
  wake_at(queue_.next_time(now));
}

void FarmSupervisor::wake_at(double when) {
  if (wake_ != 0) loop_.cancel(wake_);
  wake_ = 0;
  if (!std::isfinite(when)) return;
  wake_ = tasks_.after(to_milliseconds(std::max(0.0, when - unix_seconds())), [this] {
    wake_ = 0;
    schedule();
  });
}

LaunchSpec FarmSupervisor::launch_spec(const PipelineState& entry, int job) const {
  const QueueOptions& options = entry.pipeline.options;
  const Host& host = cluster_.hosts.at(static_cast<size_t>(entry.allocation.host));
  LaunchSpec spec;
  spec.job = job;
  spec.name = entry.pipeline.name;
  spec.folder = entry.folder;
  spec.cores = hardware_threads_of(entry.allocation, entry.request, cluster_.inventory);
  for (int index : entry.allocation.gpus) {
    const Gpu& gpu = host.gpus.at(static_cast<size_t>(cluster_.inventory.gpus.at(static_cast<size_t>(index)).gpu));
    spec.gpus.push_back(gpu.uuid.empty() ? std::to_string(gpu.index) : gpu.uuid);
  }
  spec.hide_gpus = !host.gpus.empty() && spec.gpus.empty();
  spec.memory = options.memory;
  spec.gpu_memory = options.gpu_memory;
  spec.nice = options.nice;
  const std::string prefix = entry.pipeline.name + fault_separator;
  for (const std::string& fault : run_.arguments.faults)
    if (fault.rfind(prefix, 0) == 0) spec.inject.push_back(fault.substr(prefix.size()));
  return spec;
}

void FarmSupervisor::write_config(const PipelineState& entry) const {
  const std::string path = entry.folder + "/pipeline.yaml";
  if (entry.starts == 0 && !halves()) return write_whole(path, to_yaml(entry.pipeline.config), false);
  Json config = entry.pipeline.config;
  if (halves()) config["train"]["pause_after"] = to_json(entry.pause);
  // Checkpoints of this run take precedence over the one it started from.
  if (entry.starts > 0) config["train"]["resume"] = "auto";
  write_whole(path, to_yaml(config), false);
}

void FarmSupervisor::begin(const Allocation& allocation) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(allocation.job));
  entry.status = PipelineState::Status::running;
  entry.allocation = allocation;
  entry.stop_reason = StopReason::none;
  entry.detail.clear();
  entry.last_message.clear();
  entry.started = unix_seconds();
  try {
    make_private_folder(entry.folder);
    write_config(entry);
    auto& log = logs_[allocation.job];
    log = std::make_unique<RankLogs>(entry.folder + "/logs", log_limit,
                                     [this](const std::string& text) { console_.log(text); });
  } catch (const Error& error) {
    return refused(allocation.job, exit_code_of(error.kind()), error.what());
  }
  launcher_->start(allocation.slots.front(), launch_spec(entry, allocation.job));
}

std::string FarmSupervisor::host_of(const Allocation& allocation) const {
  return cluster_.hosts.at(static_cast<size_t>(allocation.host)).name;
}

void FarmSupervisor::started(int job, pid_t pid) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  ++entry.starts;
  const LaunchSpec spec = launch_spec(entry, job);
  record(entry, "started",
         {{"pid", pid},
          {"host", host_of(entry.allocation)},
          {"slot", entry.allocation.slots.front()},
          {"cores", spec.cores},
          {"gpus", spec.gpus},
          {"priority", entry.pipeline.options.priority}});
  console_.log(str(entry.pipeline.name, ": starts on cores ", hardware_threads_text(spec.cores),
                   spec.gpus.empty() ? "" : str(", GPU ", join(spec.gpus, ", ")),
                   cluster_.hosts.size() > 1 ? str(" of ", host_of(entry.allocation)) : "",
                   entry.starts > 1 ? str(", start ", entry.starts) : ""));
  start_time_limit(job);
}

void FarmSupervisor::start_time_limit(int job) {
  const PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  const double limit = entry.pipeline.options.timeout;
  if (limit <= 0) return;
  tasks_.after(to_milliseconds(limit), [this, job, limit, start = entry.starts] {
    const PipelineState& then = pipelines_.at(static_cast<size_t>(job));
    if (then.status != PipelineState::Status::running || then.starts != start) return;
    end_pipeline(job, StopReason::timeout, str("took longer than ", human_seconds(limit), " (timeout)"));
  });
}

// Requests a stop of the pipeline, and kills it after its grace period.
void FarmSupervisor::end_pipeline(int job, StopReason why, const std::string& detail) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  if (entry.status != PipelineState::Status::running || entry.stop_reason != StopReason::none) return;
  entry.stop_reason = why;
  entry.detail = detail;
  launcher_->ask_to_stop(job);
  const double grace = grace_of(entry) + kill_slack;
  tasks_.after(to_milliseconds(grace), [this, job, start = entry.starts] {
    const PipelineState& then = pipelines_.at(static_cast<size_t>(job));
    if (then.status == PipelineState::Status::running && then.starts == start) launcher_->kill(job);
  });
}

void FarmSupervisor::over_limit(int job, const std::string& what) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  if (entry.status != PipelineState::Status::running) return;
  entry.stop_reason = StopReason::memory;
  entry.detail = what;
}

void FarmSupervisor::log_line(int job, const std::string& text) {
  const auto log = logs_.find(job);
  if (log != logs_.end()) log->second->write("convoy", text);
  if (text.rfind(message_prefix, 0) == 0)
    pipelines_.at(static_cast<size_t>(job)).last_message = text.substr(strlen(message_prefix), longest_message);
}

void FarmSupervisor::refused(int job, int exit_code, const std::string& message) {
  record_end(job, {AttemptResult::Outcome::failed, false, exit_code, name_of(failure_of_exit(exit_code)), message});
}

void FarmSupervisor::ended(int job, const ProcessEnd& end, const ResourceSample& used) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  if (entry.status != PipelineState::Status::running) return;
  entry.seconds += unix_seconds() - entry.started;
  if (!used.pipeline.empty()) resources_.end(used);
  if (end.signal != 0) remove_stale_lock(entry.folder);
  const Json summary = read_summary(entry.folder);
  const AttemptResult result = classify(end, entry.stop_reason, entry.detail, summary,
                                        memory_limit_key(entry.pipeline.options), entry.last_message);
  const Json completed = with_failure(summary, entry.pipeline.name, result);
  if (completed != summary) {
    try {
      write_summary(entry.folder, completed);
    } catch (const Error& error) {
      console_.log(error.what());
    }
  }
  record_end(job, result);
}

void FarmSupervisor::record_end(int job, const AttemptResult& result) {
  PipelineState& entry = pipelines_.at(static_cast<size_t>(job));
  logs_.erase(job);
  queue_.ended(job);
  entry.result = result;
  const std::string& name = entry.pipeline.name;
  const Json ending = {{"exit_code", result.exit_code}, {"cause", result.cause}, {"message", result.message}};
  if (result.outcome == AttemptResult::Outcome::done) {
    entry.status = PipelineState::Status::done;
    record(entry, "done", {{"exit_code", 0}});
    console_.log(str(name, ": done after ", clock_text(entry.seconds)));
  } else if (result.outcome == AttemptResult::Outcome::paused) {
    entry.status = PipelineState::Status::paused;
    const Json value = last_metric(read_summary(entry.folder), run_.farm.metric);
    record(entry, "paused", {{"rung", entry.rung_values.size()}, {"value", value}});
    entry.rung_values.push_back(value.is_number() ? std::optional<double>(value.get<double>()) : std::nullopt);
  } else if (result.outcome == AttemptResult::Outcome::preempted && !stopping_) {
    entry.status = PipelineState::Status::waiting;
    record(entry, "preempted", ending);
    console_.log(str(name, ": preempted by a pipeline of higher priority; it resumes later"));
    queue_.add(job, entry.request);
  } else if (result.outcome != AttemptResult::Outcome::failed || entry.stop_reason == StopReason::stopped) {
    entry.status = PipelineState::Status::stopped;
    Json details = ending;
    if (entry.detail == cancelled_reason) details["by_request"] = true;
    record(entry, "cancelled", details);
  } else if (++entry.failures <= entry.pipeline.options.retries && result.retryable && !stopping_) {
    const double delay = retry_delay(entry.pipeline.options.backoff, entry.failures);
    entry.status = PipelineState::Status::waiting;
    Json retry = ending;
    retry["after"] = delay;
    record(entry, "retry", retry);
    console_.log(str(name, ": ", result.message, "; again in ", human_seconds(delay), ", retry ", entry.failures,
                     " of ", entry.pipeline.options.retries));
    queue_.add(job, entry.request, unix_seconds() + delay);
  } else {
    entry.status = PipelineState::Status::failed;
    record(entry, "failed", ending);
    console_.log(str(name, ": failed (exit ", result.exit_code, ", ", result.cause, "): ", result.message, "; see ",
                     entry.folder));
  }
  advance_rungs();
  schedule();
}

// Without a journal the farm cannot resume correctly, so an error stops all pipelines after a step.
void FarmSupervisor::record(const PipelineState& entry, const std::string& event, const Json& details) {
  try {
    journal_.write(entry.pipeline.name, event, entry.starts, details);
  } catch (const Error& error) {
    abort({exit_code_of(error.kind()), name_of(error.kind()), error.what()}, false);
  }
}

void FarmSupervisor::sync_journal() {
  try {
    journal_.sync();
  } catch (const Error& error) {
    abort({exit_code_of(error.kind()), name_of(error.kind()), error.what()}, false);
  }
}

LauncherEvents FarmSupervisor::events() {
  LauncherEvents events;
  events.on_started = [this](int job, pid_t pid) { started(job, pid); };
  events.on_line = [this](int job, const std::string& text) { log_line(job, text); };
  events.on_end = [this](int job, const ProcessEnd& end, const ResourceSample& used) { ended(job, end, used); };
  events.on_samples = [this](const std::vector<ResourceSample>& samples) { resources_.write(samples); };
  events.on_over_limit = [this](int job, const std::string& what) { over_limit(job, what); };
  events.on_refused = [this](int job, int code, const std::string& message) { refused(job, code, message); };
  return events;
}

void FarmSupervisor::stop(int signal) {
  const StopRequests::Kind kind = requests_.received(StopRequests::Clock::now(), signal);
  if (kind == StopRequests::Kind::echo) return;
  if (kind == StopRequests::Kind::first)
    console_.log(str("SIG", sigabbrev_np(signal),
                     ": all pipelines stop after a step and save; a second signal ends them at once"));
  stopping_ = true;
  stop_signal_ = signal;
  if (kind == StopRequests::Kind::first) record_stop();
  for (size_t job = 0; job < pipelines_.size(); ++job) {
    PipelineState& entry = pipelines_[job];
    cancel_if_waiting(entry);
    if (entry.status != PipelineState::Status::running) continue;
    if (kind == StopRequests::Kind::first)
      end_pipeline(static_cast<int>(job), StopReason::stopped, "the farm was asked to stop");
    else
      launcher_->kill(static_cast<int>(job));
    if (entry.stop_reason == StopReason::none) entry.stop_reason = StopReason::stopped;
  }
}

Json FarmSupervisor::summary(const FarmEnd* end) const {
  return farm_summary(run_, pipelines_, folder_.attempt, static_cast<int>(cluster_.inventory.slots.size()),
                      seconds_before_ + (end == nullptr ? 0 : seconds_since(start_time_)), end);
}

// Writes a summary early: an outer launcher may kill this process before all pipelines have written checkpoints.
void FarmSupervisor::record_stop() {
  const FarmEnd end{exit_code::stopped, name_of(Failure::stopped),
                    str("asked to stop by SIG", sigabbrev_np(stop_signal_),
                        ": all pipelines stop after a step and save; if the farm ends earlier, the same command "
                        "resumes the rest")};
  try {
    write_whole(folder_.path + "/summary.json", summary_text(summary(&end)), true);
  } catch (const Error& error) {
    console_.log(error.what());
  }
}

void FarmSupervisor::abort(const FarmEnd& end, bool now) {
  if (abort_end_) return;
  abort_end_ = end;
  console_.log("failed: " + end.message);
  stopping_ = true;
  for (size_t job = 0; job < pipelines_.size(); ++job) {
    PipelineState& entry = pipelines_[job];
    cancel_if_waiting(entry);
    if (entry.status != PipelineState::Status::running) continue;
    if (!now) {
      end_pipeline(static_cast<int>(job), StopReason::stopped, end.message);
      continue;
    }
    entry.stop_reason = StopReason::stopped;
    entry.detail = end.message;
    launcher_->kill(static_cast<int>(job));
  }
}

bool FarmSupervisor::over() const {
  return std::all_of(pipelines_.begin(), pipelines_.end(),
                     [](const PipelineState& entry) { return is_over(entry.status); });
}

int FarmSupervisor::finish() {
  console_.flush();
  sync_journal();
  const FarmEnd end = abort_end_ ? *abort_end_ : farm_end(pipelines_, stop_signal_);
  const Json whole = summary(&end), &board = whole.at("leaderboard"), &rows = board.at("rows");
  try {
    write_leaderboard(folder_.path, board);
    write_summary(folder_.path, whole);
  } catch (const Error& error) {
    console_.log(error.what());
    return exit_code_of(error.kind());
  }
  console_.result(leaderboard_table(board));
  const auto done = [](const Json& row) { return row.at("status") == "done"; };
  const auto rated = [](const Json& row) { return row.at("value").is_number(); };
  if (!run_.farm.metric.empty() && std::any_of(rows.begin(), rows.end(), done) &&
      std::none_of(rows.begin(), rows.end(), rated))
    console_.log(
        str("strategy.metric is ", run_.farm.metric, ", which no pipeline reported; see `metrics` in their summaries"));
  if (!end.message.empty()) console_.log(end.message);
  console_.result("  " + folder_.path + "/summary.json\n");
  return end.exit_code;
}

}  // namespace convoy
