#include "launch/session.h"

#include <string.h>
#include <unistd.h>

#include <cctype>

#include "launch/bench_report.h"
#include "launch/exit_codes.h"
#include "launch/progress.h"
#include "launch/summary.h"
#include "launch/topology.h"
#include "launch/ways.h"

#include "core/control/protocol.h"
#include "core/inject/fault.h"

namespace convoy {
namespace {
constexpr std::chrono::milliseconds tell_every{900};  // progress comes a few times a second
constexpr size_t most_placed = 16;                    // ranks whose placement is printed; the summary has all

std::string injection_note(const std::vector<std::string>& faults, int attempt) {
  return str("faults are injected into this run (--inject): ", join(faults, ", "), "; this is attempt ", attempt,
             attempt > 0 ? ", in which only those with `always` or `attempt=` happen" : "");
}

// With the rank in front, unless the message names it. A mistake at a place of the configuration has that in front.
std::string failure_line(const Abort& cause) {
  const std::string rank = str("rank ", cause.rank);
  const size_t named = cause.message.find(rank);
  const bool names_it = named != std::string::npos &&
                        std::isdigit(static_cast<unsigned char>((cause.message + " ")[named + rank.size()])) == 0;
  if (cause.rank < 0 || names_it) return cause.message;
  const std::string place = str(rank, cause.host.empty() ? "" : " on " + cause.host);
  if (cause.kind == Failure::config) return str(cause.message, " (", place, ")");
  const bool tells_step = cause.step < 0 || cause.message.find("step ") != std::string::npos;
  return str(place, tells_step ? "" : str(", step ", cause.step), ": ", cause.message);
}
}  // namespace

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Session::Session(EventLoop& loop, const PreparedRun& run, Attempts& attempts, GangRequest request, Actions actions)
    : loop_(loop),
      run_(run),
      attempts_(attempts),
      folder_(attempts.folder()),
      console_(loop, request.processes, run.as.launcher == Launcher::none, run.quiet),
      logs_(folder_.path + "/logs", RankLogs::usual_limit, [this](const std::string& text) { console_.say(text); }) {
  if (attempts.first()) {
    for (const std::string& note : folder_.notes) console_.say(note);
    for (const std::string& warning : run.warnings) console_.say(warning);
  }
  if (!run.arguments.faults.empty()) console_.say(injection_note(run.arguments.faults, folder_.attempt));
  GangEvents events;
  events.on_joined = actions.on_joined;
  events.on_failure = [this, failed = actions.on_failure](const Abort& cause) {
    console_.say(cause.kind == Failure::stopped ? "stopping: " + cause.message : "failed: " + failure_line(cause));
    // First of all, since mpirun may kill this process too; where another attempt may follow, no outer one is there.
    if (!attempts_.may_restart()) write_ending(gang_->outcome());
    failed(cause);
  };
  events.on_line = [this](int rank, const std::string& host, const std::string& line) {
    logs_.write(rank, line);
    console_.rank_line(host, rank, line);
  };
  events.on_report = [this](const std::string& topic, const Json& body) {
    if (topic == protocol::progress) tell_progress(body);
    if (topic == protocol::metrics) console_.metrics(body);
    if (topic == injected_topic) injected(body);
    if (topic == bench_topic) console_.result(bench_line(body));
  };
  events.on_notice = [this](const std::string& text) {
    console_.say(text);
    logs_.write("stalls", text);
  };
  events.on_stop = [this](int signal) { note_stop(signal); };
  events.on_saved = [this] { write_stopped(gang_->outcome()); };
  events.on_first_step = [this] {
    if (!startup_seconds_) startup_seconds_ = seconds_since(attempts_.first() ? run_.arguments.launched : began_);
  };
  // Until the ranks are known this says what is wanted; a rank that never starts is told by it too.
  Job wanted;
  wanted.name = run.config.name;
  wanted.backend = run.config.backend;
  wanted.ranks.resize(static_cast<size_t>(request.processes));
  request.config = without_marks(run.config.resolved);
  request.resumes = run.snapshots.is_null() && run.arguments.bench.is_null();
  start_summary(wanted);
  try {
    gang_ = std::make_unique<Gang>(loop, request, events);
  } catch (const Error& error) {
    not_begun(error);  // nothing can be served: a port that is taken
    throw;
  }
}

void Session::not_begun(const Error& error) {
  GangOutcome outcome;
  outcome.cause = Abort{error.kind(), -1, -1, 0, host_name(), error.what()};
  outcome.exit_code = exit_code_of(error.kind());
  write_ending(outcome);
}

// Without marks; with what the folder's run keeps.
Json Session::configuration() const {
  Json config = without_marks(run_.config.resolved);
  if (folder_.epochs > 0) config["train"]["epochs"] = folder_.epochs;
  return config;
}

void Session::start_summary(const Job& job, const std::vector<PlacedRank>& table) {
  summary_ = starting_summary(configuration(), job, folder_.attempt, to_json(table));
  summary_["inject"] = run_.arguments.faults;
  summary_["injected"] = attempts_.injected();
  summary_["attempts"] = attempts_.ended();
  write_summary(folder_.path, summary_);
}

void Session::begin(const Placed& placed) {
  if (attempts_.first()) {
    for (const std::string& warning : placed.warnings) console_.say(warning);
    std::string table = placement_text(placed.table, most_placed);
    table.pop_back();  // say ends the line
    console_.say("ranks are placed so:\n" + table);
  }
  Job job = placed.job;
  // What this run has saved goes before what it once began with.
  if ((folder_.continued || !attempts_.first()) && attempts_.newest_checkpoint() >= 0)
    job.config["train"]["resume"] = "auto";
  if (folder_.epochs > 0) job.config["train"]["epochs"] = folder_.epochs;
  assigned_ = Assigned{job,
                       folder_.path,
                       folder_.attempt,
                       unix_seconds(),
                       placed.passive,
                       run_.snapshots,
                       run_.arguments.faults,
                       run_.arguments.bench};
  write_whole(folder_.path + "/config.yaml", to_yaml(configuration()), false);
  start_summary(placed.job, placed.table);
  if (const Json choice = choice_of(run_, folder_.path, placed.job); !choice.is_null()) {
    summary_["ways"] = choice;
    write_summary(folder_.path, summary_);
  }
  // What an earlier attempt left would be taken for the words of this one.
  unlink((folder_.path + "/progress.json").c_str());
  for (const RankPlan& rank : placed.job.ranks) unlink(str(folder_.path, "/logs/rank", rank.rank, ".state").c_str());
  for (const ProcessPlan& process : placed.job.processes) {
    logs_.open(process.ranks.front());
    if (!attempts_.first()) logs_.write(process.ranks.front(), str("convoy: attempt ", folder_.attempt));
  }
  gang_->publish(*assigned_);
}

// To the console, and to progress.json for `convoy top`; a disk that is full is for the ranks to report.
void Session::tell_progress(const Json& body) {
  console_.progress(body);
  const auto now = std::chrono::steady_clock::now();
  if (now - told_ < tell_every || body.contains("text")) return;
  told_ = now;
  try {
    write_whole(folder_.path + "/progress.json", body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n",
                false);
  } catch (const Error&) {
  }
}

// A fault that was ordered happens now: the summary must not look as if the job had failed by itself.
void Session::injected(const Json& body) {
  console_.say(str("injected fault ", body.at("fault").get<std::string>(), " happens now on rank ",
                   body.at("rank").get<int>(),
                   body.at("step").is_null() ? "" : str(", step ", body.at("step").get<int64_t>())));
  attempts_.injected().push_back(body);
  summary_["injected"] = attempts_.injected();
}

void Session::stop(int signal) { gang_->stop(signal); }

// The launcher that asked may kill this process before the ranks have saved, and nobody else would tell then.
void Session::note_stop(int signal) {
  console_.say(
      str("SIG", sigabbrev_np(signal), ": all ranks stop after the same step and save; once more ends them at once"));
  GangOutcome outcome;
  outcome.cause = Abort{Failure::stopped,
                        -1,
                        -1,
                        0,
                        "",
                        str("asked to stop by SIG", sigabbrev_np(signal),
                            ": all ranks stop after the same step and save; if convoy ends before they have saved, the "
                            "same command goes on from the newest checkpoint")};
  outcome.exit_code = exit_code::stopped;
  write_stopped(outcome);
}

// Keeps the room for the real end. It also shows a full disk early.
void Session::write_stopped(const GangOutcome& outcome) {
  try {
    const Json summary = finished_summary(summary_, outcome, startup_seconds_);
    write_whole(folder_.path + "/summary.json", summary_text(summary), true);
  } catch (const Error& error) {
    console_.say(error.what());
  }
}

void Session::write_ending(const GangOutcome& outcome) {
  write_summary(folder_.path, finished_summary(summary_, outcome, startup_seconds_));
}

Ending Session::finish() {
  console_.flush();
  unlink((folder_.path + "/progress.json").c_str());  // the summary has it all
  sweep_checkpoints(folder_.path);
  GangOutcome outcome = gang_->outcome();
  const bool failed = outcome.exit_code != exit_code::done && outcome.exit_code != exit_code::stopped;
  Ending ending = failed ? attempts_.failed(outcome, assigned_.has_value()) : Ending{outcome.exit_code, {}};
  if (gang_->stopping()) ending.again.reset();  // a run that was asked to stop gets no other attempt
  summary_["attempts"] = attempts_.ended();
  try {
    if (ending.again) {
      write_summary(folder_.path, summary_);  // it still runs
      console_.say(attempts_.note(outcome, ending));
      gang_->tell_verdict(outcome.exit_code);
      return ending;
    }
    write_ending(outcome);
  } catch (const Error& error) {
    console_.say(error.what());
    return {exit_code_of(error.kind()), std::nullopt};
  }
  if (outcome.exit_code == exit_code::done) {
    console_.result(result_text(read_summary(folder_.path), folder_.path));
  } else if (outcome.cause && outcome.cause->kind == Failure::stopped && !gang_->failed()) {
    console_.say(str(outcome.cause->message, "; ", folder_.path, "/summary.json"));
  } else {
    console_.say(str("exit ", outcome.exit_code, "; see ", folder_.path, "/summary.json and logs/"));
  }
  unlink((folder_.path + "/failure.json").c_str());  // of one who noticed less
  gang_->tell_verdict(outcome.exit_code);
  return ending;
}

}  // namespace convoy
