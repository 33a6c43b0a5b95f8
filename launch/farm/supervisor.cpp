#include "launch/farm/supervisor.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/units.h"
#include "launch/exit_codes.h"
#include "launch/farm/folders.h"
#include "launch/farm/leaderboard.h"
#include "launch/progress.h"
#include "launch/retry.h"
#include "launch/session.h"
#include "launch/summary.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds look_every{500};  // into the inbox
constexpr uint64_t sync_every = 2;       // of these, the journal to the disk
constexpr double kill_slack = 1.5;       // seconds beyond its own grace that a pipeline has to end
constexpr size_t log_limit = 4u << 20;   // of a pipeline's own console; its ranks have logs of their own
constexpr char fault_separator = '/';    // --inject NAME/FAULT
constexpr char said_by_convoy[] = "convoy: ";
constexpr size_t most_told = 1000;  // characters of that in a summary

milliseconds to_milliseconds(double seconds) { return milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000))); }

std::string held_to(const QueueTerms& terms) { return terms.gpu_memory > 0 ? "gpu_memory" : ""; }

double grace_of(const Member& member) { return member.pipeline.config.at("launch").at("grace").get<double>(); }

// A waiting one will not start any more.
void never_mind(Member& member) {
  if (member.state != Member::State::waiting) return;
  member.state = Member::State::stopped;
  member.verdict = {Verdict::What::stopped, true, exit_code::stopped, name_of(Failure::stopped),
                    "the farm was asked to stop before it started"};
}

}  // namespace

FarmSupervisor::FarmSupervisor(EventLoop& loop, FarmRun& run, RunFolder folder, Yard yard)
    : loop_(loop),
      run_(run),
      folder_(std::move(folder)),
      yard_(std::move(yard)),
      console_(loop, 1, run.as.launcher == Launcher::none),
      journal_(folder_.path),
      resources_(folder_.path),
      inbox_(folder_.path),
      queue_(yard_.machines, run.farm.max_parallel),
      starts_before_(starts_in_journal(folder_.path)) {
  for (const std::string& note : folder_.notes) console_.say(note);
  for (const std::string& warning : run_.warnings) console_.say(warning);
  for (const Pipeline& pipeline : run_.farm.pipelines) add(pipeline);
  look_at_folders();
  resume_added();
}

FarmSupervisor::~FarmSupervisor() { *alive_ = false; }

void FarmSupervisor::add(Pipeline pipeline) {
  Member member;
  member.claim = claim_of(pipeline, yard_, run_.farm.max_parallel);
  member.folder = folder_.path + "/pipelines/" + pipeline.name;
  const auto before = starts_before_.find(pipeline.name);
  member.starts = before == starts_before_.end() ? 0 : before->second;
  member.pipeline = std::move(pipeline);
  members_.push_back(std::move(member));
}

// Those that `convoy add` brought to an earlier farm of this folder.
void FarmSupervisor::resume_added() {
  for (const std::string& path : inbox_.taken()) {
    try {
      Pipeline pipeline = read_pipeline(path);
      const bool known = std::any_of(members_.begin(), members_.end(),
                                     [&](const Member& member) { return member.pipeline.name == pipeline.name; });
      if (known) continue;
      add(std::move(pipeline));
      if (read_summary(members_.back().folder).value("status", "") == "done")
        members_.back().state = Member::State::done;
    } catch (const Error& error) {
      console_.say(str(path, " was added before, and cannot be read any more: ", error.what()));
    }
  }
}

void FarmSupervisor::look_at_folders() {
  std::vector<ConfigError> mistakes;
  make_own_folder(folder_.path + "/pipelines");
  for (Member& member : members_) {
    if (auto mistake = occupied(member.pipeline, member.folder)) mistakes.push_back(std::move(*mistake));
    const Json summary = read_summary(member.folder);
    if (const auto mistake = differs(member.pipeline, member.folder, summary)) mistakes.push_back(*mistake);
    if (summary.value("status", "") == "done") member.state = Member::State::done;
  }
  refuse_all(mistakes);
}

void FarmSupervisor::start(Places& places) {
  places_ = &places;
  write_whole(folder_.path + "/config.yaml", to_yaml(run_.resolved), false);
  write_summary(folder_.path, farm_summary(run_, members_, folder_.attempt,
                                           static_cast<int>(yard_.machines.slots.size()), 0, nullptr));
  size_t done = 0;
  scheduling_ = true;  // nobody starts before all have been queued
  for (size_t job = 0; job < members_.size(); ++job) {
    Member& member = members_[job];
    if (member.state == Member::State::done) {
      ++done;
      continue;
    }
    // One that was added to an earlier farm may want what this one has not got.
    if (!queue_.possible(member.claim)) {
      refused(
          static_cast<int>(job), exit_code::config,
          str("needs ", member.claim.cores, " cores",
              member.claim.gpus > 0 ? str(" and ", member.claim.gpus, " GPUs") : "", " of one host, and this farm's ",
              yard_.machines.slots.size(), " slots do not hold them; start it again with more"));
      continue;
    }
    note(member, "queued");
    queue_.add(static_cast<int>(job), member.claim);
  }
  scheduling_ = false;
  sync_journal();
  console_.say(str(members_.size(), members_.size() == 1 ? " pipeline" : " pipelines",
                   done > 0 ? str(", of which ", done, done == 1 ? " is" : " are", " done already") : "", ", ",
                   yard_.machines.slots.size(), " slots",
                   run_.farm.max_parallel > 0 ? str(", at most ", run_.farm.max_parallel, " at a time") : ""));
  look_into_inbox();
  schedule();
  loop_.after(look_every, [this, alive = alive_] {
    if (*alive) tick();
  });
}

void FarmSupervisor::tick() {
  look_into_inbox();
  if (++ticks_ % sync_every == 0) sync_journal();
  console_.progress({{"text", farm_progress(members_)}});
  loop_.after(look_every, [this, alive = alive_] {
    if (*alive) tick();
  });
}

void FarmSupervisor::look_into_inbox() {
  if (stopping_) return;
  bool any = false;
  for (const std::string& path : inbox_.arrived()) {
    try {
      Farm alone;
      alone.max_parallel = run_.farm.max_parallel;
      // Those that name their cores and GPUs, or are promised memory, are in its way too, as long as they are not done.
      for (const Member& member : members_) {
        const QueueTerms& terms = member.pipeline.terms;
        const bool named =
            !terms.core_list.empty() || !terms.gpu_list.empty() || terms.memory > 0 || terms.gpu_memory > 0;
        const bool ended = member.state == Member::State::done || member.state == Member::State::failed;
        if (named && !ended) alone.pipelines.push_back(member.pipeline);
      }
      alone.pipelines.push_back(read_pipeline(path));
      refuse_all(check_claims(alone, yard_, rank_program(), alone.pipelines.size() - 1));
      const Pipeline& pipeline = alone.pipelines.back();
      for (const Member& member : members_)
        if (member.pipeline.name == pipeline.name)
          throw Error(Failure::config,
                      str(path, ": name: is '", pipeline.name, "', as another pipeline of this farm is"));
      add(pipeline);
      note(members_.back(), "queued");
      inbox_.take(path);
      queue_.add(static_cast<int>(members_.size() - 1), members_.back().claim);
      console_.say(str(pipeline.name, ": added to the queue"));
      any = true;
    } catch (const Error& error) {
      console_.say(str("not added: ", error.what()));
      inbox_.refuse(path, error);
    }
  }
  if (any) schedule();
}

// Starts what can start. A start that fails at once ends in here again: once around is enough.
void FarmSupervisor::schedule() {
  if (scheduling_ || stopping_) return;
  scheduling_ = true;
  const double now = unix_seconds();
  while (const auto grant = queue_.next(now)) begin(*grant);
  for (int job : queue_.give_way(now)) end_it(job, StopReason::preempt, "a more urgent pipeline needs its slot");
  scheduling_ = false;
  wake_at(queue_.next_time(now));
}

void FarmSupervisor::wake_at(double when) {
  if (wake_ != 0) loop_.cancel(wake_);
  wake_ = 0;
  if (!std::isfinite(when)) return;
  wake_ = loop_.after(to_milliseconds(std::max(0.0, when - unix_seconds())), [this, alive = alive_] {
    if (!*alive) return;
    wake_ = 0;
    schedule();
  });
}

PipelineOrder FarmSupervisor::order_of(const Member& member, int job) const {
  const QueueTerms& terms = member.pipeline.terms;
  const Host& host = yard_.hosts.at(static_cast<size_t>(member.grant.host));
  PipelineOrder order;
  order.job = job;
  order.name = member.pipeline.name;
  order.folder = member.folder;
  order.cores = units_of(member.grant, member.claim, yard_.machines);
  for (int index : member.grant.gpus) {
    const Gpu& gpu = host.gpus.at(static_cast<size_t>(yard_.machines.gpus.at(static_cast<size_t>(index)).gpu));
    order.gpus.push_back(gpu.uuid.empty() ? std::to_string(gpu.index) : gpu.uuid);
  }
  order.hide_gpus = !host.gpus.empty() && order.gpus.empty();
  order.memory = terms.memory;
  order.gpu_memory = terms.gpu_memory;
  order.nice = terms.nice;
  const std::string prefix = member.pipeline.name + fault_separator;
  for (const std::string& fault : run_.arguments.faults)
    if (fault.rfind(prefix, 0) == 0) order.faults.push_back(fault.substr(prefix.size()));
  return order;
}

void FarmSupervisor::write_config(const Member& member) const {
  const std::string path = member.folder + "/pipeline.yaml";
  if (member.starts == 0) return write_whole(path, to_yaml(member.pipeline.config), false);
  // What it has saved goes before what it once began with.
  Json config = member.pipeline.config;
  config["train"]["resume"] = "auto";
  write_whole(path, to_yaml(config), false);
}

void FarmSupervisor::begin(const Grant& grant) {
  Member& member = members_.at(static_cast<size_t>(grant.job));
  member.state = Member::State::running;
  member.grant = grant;
  member.asked = StopReason::none;
  member.detail.clear();
  member.told.clear();
  member.started = unix_seconds();
  try {
    make_private_folder(member.folder);
    write_config(member);
    auto& log = logs_[grant.job];
    log = std::make_unique<RankLogs>(member.folder + "/logs", log_limit,
                                     [this](const std::string& text) { console_.say(text); });
  } catch (const Error& error) {
    return refused(grant.job, exit_code_of(error.kind()), error.what());
  }
  places_->start(grant.slots.front(), order_of(member, grant.job));
}

std::string FarmSupervisor::host_of(const Grant& grant) const {
  return yard_.hosts.at(static_cast<size_t>(grant.host)).name;
}

void FarmSupervisor::started(int job, pid_t pid) {
  Member& member = members_.at(static_cast<size_t>(job));
  ++member.starts;
  const PipelineOrder order = order_of(member, job);
  note(member, "started",
       {{"pid", pid},
        {"host", host_of(member.grant)},
        {"slot", member.grant.slots.front()},
        {"cores", order.cores},
        {"gpus", order.gpus},
        {"priority", member.pipeline.terms.priority}});
  console_.say(str(member.pipeline.name, ": starts on cores ", units_text(order.cores),
                   order.gpus.empty() ? "" : str(", GPU ", join(order.gpus, ", ")),
                   yard_.hosts.size() > 1 ? str(" of ", host_of(member.grant)) : "",
                   member.starts > 1 ? str(", start ", member.starts) : ""));
  limit_time(job);
}

void FarmSupervisor::limit_time(int job) {
  const Member& member = members_.at(static_cast<size_t>(job));
  const double limit = member.pipeline.terms.timeout;
  if (limit <= 0) return;
  loop_.after(to_milliseconds(limit), [this, alive = alive_, job, limit, start = member.starts] {
    if (!*alive) return;
    const Member& then = members_.at(static_cast<size_t>(job));
    if (then.state != Member::State::running || then.starts != start) return;
    end_it(job, StopReason::timeout, str("took longer than ", human_seconds(limit), " (timeout)"));
  });
}

// Asks it to stop, and kills it where that does not help.
void FarmSupervisor::end_it(int job, StopReason why, const std::string& detail) {
  Member& member = members_.at(static_cast<size_t>(job));
  if (member.state != Member::State::running || member.asked != StopReason::none) return;
  member.asked = why;
  member.detail = detail;
  places_->ask_to_stop(job);
  const double grace = grace_of(member) + kill_slack;
  loop_.after(to_milliseconds(grace), [this, alive = alive_, job, start = member.starts] {
    if (!*alive) return;
    const Member& then = members_.at(static_cast<size_t>(job));
    if (then.state == Member::State::running && then.starts == start) places_->kill(job);
  });
}

void FarmSupervisor::over_limit(int job, const std::string& what) {
  Member& member = members_.at(static_cast<size_t>(job));
  if (member.state != Member::State::running) return;
  member.asked = StopReason::memory;
  member.detail = what;
}

void FarmSupervisor::line(int job, const std::string& text) {
  const auto log = logs_.find(job);
  if (log != logs_.end()) log->second->write("convoy", text);
  if (text.rfind(said_by_convoy, 0) == 0)
    members_.at(static_cast<size_t>(job)).told = text.substr(strlen(said_by_convoy), most_told);
}

void FarmSupervisor::refused(int job, int exit_code, const std::string& message) {
  Verdict verdict;
  verdict.exit_code = exit_code;
  verdict.cause = name_of(failure_of_exit(exit_code));
  verdict.message = message;
  settle(job, verdict);
}

void FarmSupervisor::ended(int job, const ProcessEnd& end, const ResourceSample& used) {
  Member& member = members_.at(static_cast<size_t>(job));
  if (member.state != Member::State::running) return;
  member.seconds += unix_seconds() - member.started;
  if (!used.pipeline.empty()) resources_.end(used);
  if (end.signal != 0) remove_left_lock(member.folder);
  const Json summary = read_summary(member.folder);
  const Verdict verdict = judge(end, member.asked, member.detail, summary, held_to(member.pipeline.terms), member.told);
  const Json told = with_end(summary, member.pipeline.name, verdict);
  if (told != summary) {
    try {
      write_summary(member.folder, told);
    } catch (const Error& error) {
      console_.say(error.what());
    }
  }
  settle(job, verdict);
}

void FarmSupervisor::settle(int job, const Verdict& verdict) {
  Member& member = members_.at(static_cast<size_t>(job));
  logs_.erase(job);
  queue_.ended(job);
  member.verdict = verdict;
  const std::string& name = member.pipeline.name;
  const Json ending = {{"exit_code", verdict.exit_code}, {"cause", verdict.cause}, {"message", verdict.message}};
  if (verdict.what == Verdict::What::done) {
    member.state = Member::State::done;
    note(member, "done", {{"exit_code", 0}});
    console_.say(str(name, ": done after ", clock_text(member.seconds)));
  } else if (verdict.what == Verdict::What::preempted && !stopping_) {
    member.state = Member::State::waiting;
    note(member, "preempted", ending);
    console_.say(str(name, ": gives way to a more urgent one, and goes on later"));
    queue_.add(job, member.claim);
  } else if (verdict.what != Verdict::What::failed || (stopping_ && member.asked == StopReason::stopped)) {
    member.state = Member::State::stopped;
    note(member, "cancelled", ending);
  } else if (++member.failures <= member.pipeline.terms.retries && verdict.again_helps && !stopping_) {
    const double delay = retry_delay(member.pipeline.terms.backoff, member.failures);
    member.state = Member::State::waiting;
    Json again = ending;
    again["after"] = delay;
    note(member, "retry", again);
    console_.say(str(name, ": ", verdict.message, "; again in ", human_seconds(delay), ", retry ", member.failures,
                     " of ", member.pipeline.terms.retries));
    queue_.add(job, member.claim, unix_seconds() + delay);
  } else {
    member.state = Member::State::failed;
    note(member, "failed", ending);
    console_.say(str(name, ": failed (exit ", verdict.exit_code, ", ", verdict.cause, "): ", verdict.message, "; see ",
                     member.folder));
  }
  schedule();
}

// Where not even this can be written down nothing is safe any more; what runs is still ended in order.
void FarmSupervisor::note(const Member& member, const std::string& event, const Json& details) {
  try {
    journal_.write(member.pipeline.name, event, member.starts, details);
  } catch (const Error& error) {
    give_up({exit_code_of(error.kind()), name_of(error.kind()), error.what()}, false);
  }
}

void FarmSupervisor::sync_journal() {
  try {
    journal_.sync();
  } catch (const Error& error) {
    give_up({exit_code_of(error.kind()), name_of(error.kind()), error.what()}, false);
  }
}

PlacesEvents FarmSupervisor::events() {
  PlacesEvents events;
  events.on_started = [this](int job, pid_t pid) { started(job, pid); };
  events.on_line = [this](int job, const std::string& text) { line(job, text); };
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
    console_.say(
        str("SIG", sigabbrev_np(signal), ": all pipelines stop after a step and save; once more ends them at once"));
  stopping_ = true;
  stop_signal_ = signal;
  if (kind == StopRequests::Kind::first) note_stop();
  for (size_t job = 0; job < members_.size(); ++job) {
    Member& member = members_[job];
    never_mind(member);
    if (member.state != Member::State::running) continue;
    if (kind == StopRequests::Kind::first)
      end_it(static_cast<int>(job), StopReason::stopped, "the farm was asked to stop");
    else
      places_->kill(static_cast<int>(job));
    if (member.asked == StopReason::none) member.asked = StopReason::stopped;
  }
}

// The launcher that asked may kill this process before all have saved, and nobody else would tell then.
void FarmSupervisor::note_stop() {
  const FarmEnd end{exit_code::stopped, name_of(Failure::stopped),
                    str("asked to stop by SIG", sigabbrev_np(stop_signal_),
                        ": all pipelines stop after a step and save; if the farm ends before they have, the same "
                        "command goes on with "
                        "the rest")};
  const int slots = static_cast<int>(yard_.machines.slots.size());
  try {
    write_whole(folder_.path + "/summary.json",
                summary_text(farm_summary(run_, members_, folder_.attempt, slots, seconds_since(began_), &end)), true);
  } catch (const Error& error) {
    console_.say(error.what());
  }
}

void FarmSupervisor::give_up(const FarmEnd& end, bool now) {
  if (given_up_) return;
  given_up_ = end;
  console_.say("failed: " + end.message);
  stopping_ = true;
  for (size_t job = 0; job < members_.size(); ++job) {
    Member& member = members_[job];
    never_mind(member);
    if (member.state != Member::State::running) continue;
    if (!now) {
      end_it(static_cast<int>(job), StopReason::stopped, end.message);
      continue;
    }
    member.asked = StopReason::stopped;
    member.detail = end.message;
    places_->kill(static_cast<int>(job));
  }
}

bool FarmSupervisor::over() const {
  return std::none_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.state == Member::State::waiting || member.state == Member::State::running;
  });
}

int FarmSupervisor::finish() {
  console_.flush();
  sync_journal();
  const FarmEnd end = given_up_ ? *given_up_ : farm_end(members_, stop_signal_);
  const Json summary = farm_summary(run_, members_, folder_.attempt, static_cast<int>(yard_.machines.slots.size()),
                                    seconds_since(began_), &end);
  try {
    write_leaderboard(folder_.path, summary.at("leaderboard"));
    write_summary(folder_.path, summary);
  } catch (const Error& error) {
    console_.say(error.what());
    return exit_code_of(error.kind());
  }
  console_.result(leaderboard_table(summary.at("leaderboard")));
  const Json& rows = summary.at("leaderboard").at("rows");
  const auto done = [](const Json& row) { return row.at("status") == "done"; };
  const auto rated = [](const Json& row) { return row.at("value").is_number(); };
  if (!run_.farm.metric.empty() && std::any_of(rows.begin(), rows.end(), done) &&
      std::none_of(rows.begin(), rows.end(), rated))
    console_.say(
        str("strategy.metric is ", run_.farm.metric, ", which no pipeline has told: see `metrics` in their summaries"));
  if (!end.message.empty()) console_.say(end.message);
  console_.result("  " + folder_.path + "/summary.json\n");
  return end.exit_code;
}

}  // namespace convoy
