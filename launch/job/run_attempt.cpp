#include "launch/job/run_attempt.h"

#include <string.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "core/control/assignment.h"
#include "core/control/channel.h"
#include "core/control/exit_codes.h"
#include "core/control/fault.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"
#include "launch/diagnose/reports.h"
#include "launch/job/run_modes.h"
#include "launch/machine/topology.h"

namespace convoy {
namespace {
constexpr size_t most_placed = 16;  // longest printed placement; the summary has all

std::string injection_note(const std::vector<std::string>& faults, int attempt) {
  return str("faults are injected into this run (--inject): ", join(faults, ", "), "; this is attempt ", attempt,
             attempt > 0 ? ", in which only those with `always` or `attempt=` happen" : "");
}

// The message with the rank first, unless it names the rank. A source location of the configuration stays first.
std::string failure_line(const Abort& cause) {
  const std::string rank = str("rank ", cause.rank);
  const size_t named = cause.message.find(rank);
  const bool names_it = named != std::string::npos &&
                        std::isdigit(static_cast<unsigned char>((cause.message + " ")[named + rank.size()])) == 0;
  if (cause.rank < 0 || names_it) return cause.message;
  const std::string rank_and_host = str(rank, cause.host.empty() ? "" : " on " + cause.host);
  if (cause.kind == Failure::config) return str(cause.message, " (", rank_and_host, ")");
  const bool tells_step = cause.step < 0 || cause.message.find("step ") != std::string::npos;
  return str(rank_and_host, tells_step ? "" : str(", step ", cause.step), ": ", cause.message);
}
}  // namespace

bool reported_done(const RunFolder& folder) {
  if (!folder.already_done) return false;
  for (const std::string& note : folder.notes) std::puts(terminal_safe(note).c_str());
  return true;
}

RunAttempt::RunAttempt(EventLoop& loop, const PreparedRun& run, RestartPolicy& policy, JobRequest request,
                       Actions actions)
    : loop_(loop),
      run_(run),
      policy_(policy),
      folder_(policy.folder()),
      began_(policy.first() ? run.arguments.launched : std::chrono::steady_clock::now()),
      console_(loop, request.processes, run.as.launcher == Launcher::none, run.quiet, run.printed_before),
      logs_(folder_.path + "/logs", RankLogs::usual_limit, [this](const std::string& text) { console_.log(text); }),
      live_(folder_.path, run.config.log.prometheus, began_, [this](const std::string& text) { console_.log(text); }),
      tasks_(loop) {
  if (policy.first()) {
    for (const std::string& note : folder_.notes) console_.log(note);
    for (const std::string& warning : run.warnings) console_.log(warning);
  }
  if (!run.arguments.faults.empty()) console_.log(injection_note(run.arguments.faults, folder_.attempt));
  JobEvents events;
  events.on_joined = actions.on_joined;
  events.on_failure = [this, failed = actions.on_failure](const Abort& cause) {
    drop_joining();
    if (cause.kind == Failure::stopped)
      console_.log("stopping: " + cause.message);
    else
      console_.failed("failed: " + failure_line(cause), cause.message);
    // Writes the summary first, since mpirun may kill this process too; an attempt that may restart has no outer
    // mpirun.
    if (!policy_.may_restart()) write_end(supervisor_->outcome());
    failed(cause);
  };
  events.on_line = [this](int rank, const std::string& host, const std::string& line) {
    // An agent reports the number that a process had when it was started. With agents, a process is one rank.
    if (!direct_line_ && !retired_.empty() && retired_.front()->has_agents()) rank = std::max(0, current_process(rank));
    logs_.write(rank, line);
    console_.rank_line(host, rank, line);
  };
  events.on_report = [this](const std::string& topic, const Json& body) {
    if (topic == protocol::progress) console_.progress(body), live_.progress(body);
    if (topic == protocol::metrics) console_.metrics(body), live_.evaluated(body);
    if (topic == protocol::resources) live_.resources(body);
    if (topic == injected_topic) injected(body);
    if (topic == failed_saves_topic) summary_["failed_saves"] = ++policy_.failed_saves();
    if (topic == protocol::continued) continued(body);
    if (topic == protocol::signalled) supervisor_->signalled(body);
    if (topic == protocol::checked_data) checked_data_ = body;
    if (topic == bench_topic) console_.result(bench_line(body));
  };
  events.on_notice = [this](const std::string& text) {
    console_.log(text);
    logs_.write("stalls", text);
  };
  if (run.config.launch.min_ranks > 0) {
    events.on_agent_report = [this](int process, const ProcessEnd& end) { ended(process, end); };
    events.on_unreachable = [this](int process, bool started, const std::string& how, Failure kind) {
      return is_unreachable(process, started, how, kind);
    };
  }
  events.on_stop = [this](int signal) {
    drop_joining();
    note_stop(signal);
  };
  events.on_saved = [this] { write_stopped(supervisor_->outcome(), true); };
  events.on_first_step = [this] {
    if (!startup_seconds_) startup_seconds_ = seconds_since(began_);
    first_step_done();
  };
  // Until the ranks are known, the summary has the wanted job, also if a rank never starts.
  JobPlan wanted;
  wanted.name = run.config.name;
  wanted.backend = run.config.backend;
  wanted.ranks.resize(static_cast<size_t>(request.processes));
  request.launch = run.config.launch;
  request.config = without_locations(run.config.resolved);
  request.resumes = run.snapshots.is_null() && run.arguments.bench.is_null() && run.arguments.use.is_null();
  request.stops_at_once = !run.arguments.use.is_null();
  start_summary(wanted);
  try {
    request_ = request;
    on_left_ = actions.on_left;
    start_ = actions.start;
    events_ = events;
    supervisor_ = std::make_unique<JobSupervisor>(loop, request, events);
  } catch (const Error& error) {
    begin_failed(error);  // the channel cannot be served, for example on a used port
    throw;
  } catch (const std::system_error& error) {
    begin_failed(limit_error(error, Failure::internal));
    throw;
  }
  loop.on_signal([this](int signal) { supervisor_->stop(signal); });
}

void RunAttempt::begin_failed(const Error& error) {
  JobOutcome outcome;
  outcome.cause = Abort{error.kind(), -1, -1, 0, host_name(), error.what()};
  outcome.exit_code = exit_code_of(error.kind());
  write_end(outcome);
}

// The configuration without source locations, with the values that the folder's run keeps.
Json RunAttempt::configuration() const {
  Json config = without_locations(run_.config.resolved);
  config["train"].update(folder_.train);
  return config;
}

void RunAttempt::start_summary(const JobPlan& job, const std::vector<PlacedRank>& table, const Json& topology) {
  summary_ = starting_summary(configuration(), job, folder_.attempt, table);
  summary_["topology"] = topology;
  summary_["inject"] = run_.arguments.faults;
  summary_["injected"] = policy_.injected();
  summary_["attempts"] = policy_.ended();
  if (policy_.failed_saves() > 0) summary_["failed_saves"] = policy_.failed_saves();
  if (run_.config.launch.min_ranks > 0) summary_["membership"] = policy_.memberships();
  write_summary(folder_.path, summary_);
}

void RunAttempt::begin(const PlacedJob& placed) {
  if (policy_.first()) {
    for (const std::string& warning : placed.warnings) console_.log(warning);
    std::string table = placement_text(placed.table, most_placed);
    table.pop_back();  // the console adds the newline
    console_.log("placement of the ranks:\n" + table);
  }
  JobPlan job = placed.job;
  // Checkpoints of this run take precedence over the one that it began from.
  Json train = folder_.train;
  if ((folder_.continued || !policy_.first()) && policy_.newest_checkpoint() >= 0) train.emplace("resume", "auto");
  job.config = job.config.changed({{"train", train}});
  assignment_ = RankAssignment{job,
                               folder_.path,
                               folder_.attempt,
                               unix_seconds(),
                               placed.passive,
                               run_.snapshots,
                               run_.arguments.faults,
                               run_.arguments.bench,
                               run_.arguments.use};
  try {
    live_.begin();
    write_folder(placed);
  } catch (const Error& error) {
    begin_failed(error);
    throw;
  }
  hosts_ = placed.hosts;
  current_processes_.resize(job.processes.size());
  std::iota(current_processes_.begin(), current_processes_.end(), 0);
  supervisor_->publish(*assignment_);
  if (!keeps_ranks()) return;
  requests_.emplace(folder_.path);
  read_requests();
}

// Writes what readers of the folder expect before the first step.
void RunAttempt::write_folder(const PlacedJob& placed) {
  write_whole(folder_.path + "/config.yaml", to_yaml(configuration()), false);
  start_summary(placed.job, placed.table, placed.topology);
  if (const Json choice = choice_of(run_, placed.job); !choice.is_null()) {
    summary_["ways"] = choice;
    write_summary(folder_.path, summary_);
  }
  // Removes files of an earlier attempt, which readers would mistake for new ones.
  unlink((folder_.path + "/progress.json").c_str());
  for (const RankPlan& rank : placed.job.ranks) unlink(str(folder_.path, "/logs/rank", rank.rank, ".state").c_str());
  for (const ProcessPlan& process : placed.job.processes) {
    logs_.open(process.ranks.front());
    if (!policy_.first()) logs_.write(process.ranks.front(), str("convoy: attempt ", folder_.attempt));
  }
}

// Records an injected fault, so that the summary does not show an ordinary failure.
void RunAttempt::injected(const Json& body) {
  console_.log(str("injected fault ", body.at("fault").get<std::string>(), " happens now on rank ",
                   body.at("rank").get<int>(),
                   body.at("step").is_null() ? "" : str(", step ", body.at("step").get<int64_t>())));
  policy_.injected().push_back(body);
  summary_["injected"] = policy_.injected();
}

// Writes the stop at once: the launcher that requested it may kill this process before the ranks have saved.
void RunAttempt::note_stop(int signal) {
  if (supervisor_->saved())
    return console_.log(str("SIG", sigabbrev_np(signal),
                            ": the results are complete; processes that have not ended in ",
                            human_seconds(run_.config.launch.grace), " (launch.grace) are killed"));
  console_.log(
      str("SIG", sigabbrev_np(signal), ": all ranks stop after the same step and save; once more ends them at once"));
  JobOutcome outcome;
  outcome.cause.emplace();
  outcome.cause->kind = Failure::stopped;
  outcome.cause->message = str("asked to stop by SIG", sigabbrev_np(signal),
                               ": all ranks stop after the same step and save; if convoy ends before they have saved, "
                               "the same command resumes from the newest checkpoint");
  outcome.exit_code = exit_code::stopped;
  // The ranks wait for this: a launcher may kill all a second after its signal, and a busy disk takes as long.
  write_stopped(outcome, false);
}

// Writes a preliminary end. It leaves the reserved space for the real end, and detects a full disk early.
void RunAttempt::write_stopped(const JobOutcome& outcome, bool durable) {
  try {
    const Json summary = ended_summary(outcome);
    write_whole(folder_.path + "/summary.json", summary_text(summary), durable);
  } catch (const Error& error) {
    console_.log(error.what());
  }
}

Json RunAttempt::ended_summary(JobOutcome outcome) const {
  outcome.wall_seconds = seconds_since(began_);
  // Ranks count failed saves since the last change of the membership, restart or resume; this counts all of the run.
  if (policy_.failed_saves() > 0) outcome.result["failed_saves"] = policy_.failed_saves();
  return finished_summary(summary_, std::move(outcome), startup_seconds_);
}

void RunAttempt::write_running() {
  try {
    write_whole(folder_.path + "/summary.json", summary_text(summary_), false);
  } catch (const Error& error) {
    console_.log(str("warning: ", error.what(), "; the run continues, and writes this file again at its next change"));
  }
}

void RunAttempt::write_end(const JobOutcome& outcome) { write_summary(folder_.path, ended_summary(outcome)); }

// True if the run's data or model did not fit the checkpoint that train.resume names: the folder holds nothing of
// value.
bool RunAttempt::refused_to_resume(const JobOutcome& outcome) const {
  const std::string& resume = run_.config.train.resume;
  std::error_code none;
  return run_.arguments.use.is_null() && outcome.exit_code == exit_code::config && resume != "auto" &&
         resume != "never" && folder_.created && folder_.attempt == 0 &&
         !std::filesystem::exists(folder_.path + "/checkpoints", none) &&
         read_file_if_any(folder_.path + "/metrics.jsonl").empty();
}

void RunAttempt::publish_exit_code(int exit_code) {
  supervisor_->publish_exit_code(exit_code);
  if (!retired_.empty()) retired_.front()->publish_exit_code(exit_code);  // agents read its channel
}

AttemptEnd RunAttempt::finish() {
  loop_.on_signal(nullptr);
  drop_joining();
  for (const UnfinishedChange& change : unfinished_)
    if (!change.asked.empty())
      requests_->answer(change.asked, {exit_code_of(Failure::output), "the run ended before the rank had made a step"});
  console_.flush();
  remove_leftover_checkpoints(folder_.path);
  JobOutcome outcome = supervisor_->outcome();
  live_.end(outcome.exit_code, ended_summary(outcome).value("breakdown", Json()));
  const bool failed = outcome.exit_code != exit_code::done && outcome.exit_code != exit_code::stopped;
  AttemptEnd end = failed ? policy_.failed(outcome, assignment_.has_value()) : AttemptEnd{outcome.exit_code, {}};
  // No attempt follows a request to stop, nor complete results whose ranks only did not exit.
  const bool only_lingers = supervisor_->complete() && outcome.cause && outcome.cause->kind == Failure::hang;
  if (supervisor_->stopping() || only_lingers) end.again.reset();
  if (requests_ && !end.again) requests_->refuse_all();
  requests_.reset();
  summary_["attempts"] = policy_.ended();
  try {
    if (end.again) {
      write_running();
      console_.log(policy_.note(outcome, end));
      publish_exit_code(outcome.exit_code);
      return end;
    }
    if (refused_to_resume(outcome)) {
      system_files().remove_all(folder_.path);
      console_.log(str("exit ", outcome.exit_code, "; ", folder_.path, " is removed, since nothing was trained"));
      publish_exit_code(outcome.exit_code);
      return end;
    }
    write_end(outcome);
  } catch (const Error& error) {
    console_.log(error.what());
    return {exit_code_of(error.kind()), std::nullopt};
  }
  if (outcome.exit_code == exit_code::done) {
    console_.result(result_text(read_summary(folder_.path), folder_.path));
  } else if (outcome.cause && outcome.cause->kind == Failure::stopped && !supervisor_->failed()) {
    console_.log(str(outcome.cause->message, "; ", folder_.path, "/summary.json"));
  } else {
    console_.log(str("exit ", outcome.exit_code, "; see ", folder_.path, "/summary.json and logs/"));
  }
  unlink((folder_.path + "/failure.json").c_str());  // from an agent, whose cause is less exact
  publish_exit_code(outcome.exit_code);
  return end;
}

}  // namespace convoy
