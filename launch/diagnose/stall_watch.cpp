#include "launch/diagnose/stall_watch.h"

#include <algorithm>
#include <limits>

#include "core/base/log.h"
#include "core/base/text.h"
#include "core/rank_state/position.h"
#include "launch/machine/topology.h"

namespace convoy {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Extra time for ranks, so that they report their time limits first.
constexpr double set_up_slack = 0.5;
// Largest delay of timers on a busy host.
constexpr double longest_delay = 3;

}  // namespace

StallWatch::StallWatch(EventLoop& loop, std::shared_ptr<Channel> channel, const LaunchConfig& launch, Events events)
    : loop_(loop), channel_(std::move(channel)), launch_(launch), events_(std::move(events)), tasks_(loop) {}

void StallWatch::begin(const JobPlan& job, const std::string& folder, std::vector<std::string> hosts) {
  job_ = job;
  folder_ = folder;
  hosts_ = std::move(hosts);
  check_positions();
}

void StallWatch::set_rank_info(int rank, const Json& info) {
  if (info.value("host", "") == host_name()) local_pids_[rank] = info.value("pid", 0);
}

void StallWatch::store_reports(const Json& reports) {
  if (!reports.is_array()) return;
  for (const Json& one : reports) {
    const RankReport report = report_from_json(one);
    reports_[report.rank] = {report, Clock::now()};
  }
}

bool StallWatch::posted(const std::string& topic, const Json& body) {
  if (topic == protocol::heartbeat) {
    store_reports(body);
  } else if (topic == protocol::slow_collective) {
    on_slow_collective(body);
  } else if (topic == protocol::where) {
    store_reports(body.at("ranks"));
    if (!inquiry_ || body.at("id") != inquiry_->id) return true;
    for (const Json& one : body.at("ranks")) {
      const RankReport report = report_from_json(one);
      inquiry_->reports[report.rank] = report;
      inquiry_->no_position.erase(first_rank_of(report.rank));
    }
    answered();
  } else if (topic == protocol::stacks) {
    if (!inquiry_ || body.at("id") != inquiry_->id) return true;
    for (const Json& one : body.at("threads")) inquiry_->stacks.push_back(one.get<ThreadStack>());
    inquiry_->no_stacks.erase(body.at("process").get<int>());
    answered();
  } else {
    return false;
  }
  return true;
}

void StallWatch::on_slow_collective(const Json& body) {
  Stall stall;
  static_cast<SlowCollective&>(stall) = body.get<SlowCollective>();
  stall.rank = body.at("rank");
  // All ranks that wait in one collective cause one warning.
  if (!stall.over && !warned_.insert({stall.group, stall.number > 0 ? stall.number : -1 - stall.rank}).second) return;
  inquire(stall, stall.over);
}

void StallWatch::heartbeat_lost(int rank, double seconds, const std::string& message) {
  Stall stall;
  stall.kind = Stall::Kind::heartbeat;
  stall.rank = rank;
  stall.seconds = seconds;
  stall.limit = launch_.heartbeat;
  stall.message = message;
  inquire(stall, true);
}

int StallWatch::first_rank_of(int rank) const {
  const RankPlan& plan = job_->ranks.at(static_cast<size_t>(rank));
  return job_->processes.at(static_cast<size_t>(plan.process)).ranks.front();
}

void StallWatch::inquire(const Stall& stall, bool limit_exceeded) {
  if (stall_reported_ || (inquiry_ && (inquiry_->limit_exceeded || !limit_exceeded))) return;
  if (inquiry_) loop_.cancel(inquiry_->timer);  // a stall replaces a warning
  inquiry_ = Inquiry{};
  inquiry_->id = next_id_++;
  inquiry_->stall = stall;
  inquiry_->limit_exceeded = limit_exceeded;
  if (!job_) return conclude();
  std::set<int>& asked = inquiry_->no_position;
  for (const ProcessPlan& process : job_->processes) asked.insert(process.ranks.front());
  // Ranks that send no heartbeat or are suspended cannot answer.
  if (stall.kind == Stall::Kind::heartbeat) asked.erase(first_rank_of(stall.rank));
  for (const RankPlan& rank : job_->ranks)
    if (suspended(rank.rank)) asked.erase(first_rank_of(rank.rank));
  if (limit_exceeded) inquiry_->no_stacks = asked;
  inquiry_->timer = tasks_.after(inquiry_patience, [this, id = inquiry_->id] {
    if (inquiry_ && inquiry_->id == id) conclude();
  });
  try {
    channel_->set(protocol::inquiry, Json{{"id", inquiry_->id}, {"stacks", limit_exceeded}}.dump());
  } catch (const Error& error) {
    log::warning(error.what());
  }
  answered();
}

void StallWatch::answered() {
  if (!inquiry_->no_position.empty() || !inquiry_->no_stacks.empty()) return;
  loop_.cancel(inquiry_->timer);
  conclude();
}

void StallWatch::conclude() {
  const Inquiry done = std::move(*inquiry_);
  inquiry_.reset();
  const std::vector<RankStatus> all = statuses(&done);
  StallDiagnosis diagnosis = diagnose(done.stall, all);
  if (!done.limit_exceeded) {
    if (diagnosis.kind == Failure::hang)
      events_.on_warning(str("warning: ", diagnosis.message, "; that is half of its time limit (launch.collective)"));
    return;
  }
  if (done.stall.kind == Stall::Kind::collective && diagnosis.kind == Failure::hang)
    diagnosis.message += str("; its time limit is ", human_seconds(done.stall.limit),
                             " (launch.collective); raise it if ranks are only slow");
  stall_reported_ = true;
  const int at = diagnosis.ranks.empty() ? done.stall.rank : diagnosis.ranks.front();
  int64_t step = -1;
  for (const RankStatus& status : all)
    if (status.report.rank == at) step = status.report.position.step;
  events_.on_stall(
      {diagnosis, step, stall_report(all, diagnosis, done.stacks), stall_json(all, diagnosis, done.stacks)});
}

// Looks for ranks whose position does not change; no rank reports that itself.
void StallWatch::check_positions() {
  if (stall_reported_) return;
  const std::vector<RankStatus> all = statuses(nullptr);
  const double shortest =
      launch_.step_timeout > 0 ? std::min(launch_.step_timeout, launch_.rendezvous) : launch_.rendezvous;
  const double pause = std::clamp(shortest / 10, 0.05, 1.0);
  const Clock::time_point now = Clock::now();
  // A job that was suspended as a whole has not stalled.
  if (!watched_since_ || seconds_between(last_check_, now) > pause + longest_delay) watched_since_ = now;
  last_check_ = now;
  // Subtracts the time since the last report of a remote rank: it may have moved on.
  const auto age = [watched = seconds_between(*watched_since_, now)](const RankStatus& status) {
    return std::min(status.report.age - status.seconds_since_report, watched);
  };
  // A rank may wait for another that makes a cache of the same data.
  double read_age = std::numeric_limits<double>::infinity();
  for (const RankStatus& status : all)
    if (status.known && status.report.position.phase == reading_phase) read_age = std::min(read_age, age(status));
  bool set_up = all.empty();
  std::optional<Stall> stalled;
  bool only_waits = false;  // true if `stalled` waits for other ranks
  for (const RankStatus& status : all) {
    const std::string& phase = status.report.position.phase;
    const bool before = !status.known || is_set_up(phase);
    set_up |= before;
    Stall stall;
    stall.kind = before ? Stall::Kind::set_up : Stall::Kind::step;
    stall.rank = status.report.rank;
    stall.seconds = phase == reading_phase ? read_age : age(status);
    stall.limit = before ? launch_.rendezvous : launch_.step_timeout;
    const bool exceeded = stall.seconds > stall.limit + (before ? set_up_slack : 0);
    if (!status.known || phase == "done" || stall.limit <= 0 || !exceeded) continue;
    const bool waits = !status.report.position.collective.empty();
    if (!stalled || (only_waits && !waits)) stalled = stall, only_waits = waits;
  }
  if (stalled) return inquire(*stalled, true);
  if (!set_up && launch_.step_timeout <= 0) return;
  tasks_.after(to_milliseconds(pause), [this] { check_positions(); });
}

bool StallWatch::suspended(int rank) const {
  const auto found = local_pids_.find(rank);
  if (found == local_pids_.end()) return false;
  const auto status = process_status(found->second);
  return status && (status->state == 'T' || status->state == 't');
}

RankStatus StallWatch::status_of(const RankPlan& rank, const Inquiry* inquiry) const {
  RankStatus status;
  status.report.rank = rank.rank;
  if (const auto process = static_cast<size_t>(rank.process); process < hosts_.size()) status.host = hosts_[process];
  status.suspended = suspended(rank.rank);
  if (inquiry != nullptr) {
    if (const auto answer = inquiry->reports.find(rank.rank); answer != inquiry->reports.end()) {
      status.report = answer->second;
      status.known = status.answered = true;
      return status;
    }
  }
  if (const auto report = read_report(rank.rank, str(folder_, "/logs/rank", rank.rank, ".state"))) {
    status.report = *report;
    status.known = true;
  } else if (const auto last = reports_.find(rank.rank); last != reports_.end()) {
    status.report = last->second.report;
    status.seconds_since_report = seconds_between(last->second.at, Clock::now());
    status.report.age += status.seconds_since_report;
    status.known = true;
  }
  return status;
}

std::vector<RankStatus> StallWatch::statuses(const Inquiry* inquiry) const {
  std::vector<RankStatus> all;
  if (!job_) return all;
  for (const RankPlan& rank : job_->ranks) all.push_back(status_of(rank, inquiry));
  return all;
}

StallDiagnosis StallWatch::mismatch() const { return collective_mismatch(statuses(nullptr)); }

std::optional<RankReport> StallWatch::position(int rank) const {
  if (!job_ || rank < 0 || rank >= static_cast<int>(job_->ranks.size())) return std::nullopt;
  const RankStatus status = status_of(job_->ranks[static_cast<size_t>(rank)], nullptr);
  if (!status.known) return std::nullopt;
  return status.report;
}

}  // namespace convoy
