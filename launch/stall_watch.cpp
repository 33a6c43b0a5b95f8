#include "launch/stall_watch.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "core/control/phases.h"
#include "core/control/supervised_channel.h"
#include "core/log.h"
#include "core/text.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Ranks report a lack of their own first.
constexpr double set_up_slack = 0.5;
// Delay of our own timers on a busy host.
constexpr double longest_delay = 3;

}  // namespace

StallWatch::StallWatch(EventLoop& loop, std::shared_ptr<Channel> channel, const LaunchConfig& launch, Events events)
    : loop_(loop), channel_(std::move(channel)), launch_(launch), events_(std::move(events)) {}

StallWatch::~StallWatch() { *alive_ = false; }

void StallWatch::begin(const Job& job, const std::string& folder, std::vector<std::string> hosts) {
  job_ = job;
  folder_ = folder;
  hosts_ = std::move(hosts);
  const Json& launch = job.config.at("launch");
  if (const auto limit = launch.find("step_timeout"); limit != launch.end() && limit->is_number())
    step_timeout_ = limit->get<double>();
  check_places();
}

void StallWatch::know(int rank, const Json& info) {
  if (info.value("host", "") == host_name()) here_[rank] = info.value("pid", 0);
}

void StallWatch::heard(const Json& reports) {
  if (!reports.is_array()) return;
  for (const Json& one : reports) {
    const RankReport report = report_from_json(one);
    heard_[report.rank] = {report, Clock::now()};
  }
}

bool StallWatch::posted(const std::string& topic, const Json& body) {
  if (topic == protocol::beat) {
    heard(body);
  } else if (topic == protocol::late) {
    late(body);
  } else if (topic == protocol::where) {
    heard(body.at("ranks"));
    if (!inquiry_ || body.at("id") != inquiry_->id) return true;
    for (const Json& one : body.at("ranks")) {
      const RankReport report = report_from_json(one);
      inquiry_->reports[report.rank] = report;
      inquiry_->told_where.insert(first_rank_of(report.rank));
    }
    answered();
  } else if (topic == protocol::stacks) {
    if (!inquiry_ || body.at("id") != inquiry_->id) return true;
    for (const Json& one : body.at("threads")) inquiry_->stacks.push_back(stack_from_json(one));
    inquiry_->told_stacks.insert(body.at("process").get<int>());
    answered();
  } else {
    return false;
  }
  return true;
}

void StallWatch::late(const Json& body) {
  Stall stall;
  stall.rank = body.at("rank").get<int>();
  stall.group = body.at("group").get<std::string>();
  stall.number = body.at("number").get<int64_t>();
  stall.call = body.at("call").get<std::string>();
  stall.members = body.at("members").get<std::vector<int>>();
  stall.seconds = body.at("seconds").get<double>();
  stall.limit = body.at("limit").get<double>();
  const bool over = body.at("over").get<bool>();
  // Of all that wait in one call the first to say so speaks for the others.
  if (!over && !warned_.insert({stall.group, stall.number > 0 ? stall.number : -1 - stall.rank}).second) return;
  inquire(stall, over);
}

void StallWatch::silent(int rank, double seconds, const std::string& message) {
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

void StallWatch::inquire(const Stall& stall, bool over) {
  if (over_ || (inquiry_ && (inquiry_->over || !over))) return;
  if (inquiry_) loop_.cancel(inquiry_->timer);  // a warning gives way
  inquiry_.emplace();
  inquiry_->id = next_id_++;
  inquiry_->stall = stall;
  inquiry_->over = over;
  if (!job_) return conclude();
  for (const ProcessPlan& process : job_->processes) inquiry_->asked.insert(process.ranks.front());
  // Nobody waits for those that are known to be silent.
  if (stall.kind == Stall::Kind::heartbeat) inquiry_->asked.erase(first_rank_of(stall.rank));
  for (const RankPlan& rank : job_->ranks)
    if (suspended(rank.rank)) inquiry_->asked.erase(first_rank_of(rank.rank));
  inquiry_->timer = loop_.after(inquiry_patience, [this, alive = alive_, id = inquiry_->id] {
    if (*alive && inquiry_ && inquiry_->id == id) conclude();
  });
  try {
    channel_->set(protocol::inquiry, Json{{"id", inquiry_->id}, {"stacks", over}}.dump());
  } catch (const Error& error) {
    log::warning(error.what());
  }
  answered();
}

void StallWatch::answered() {
  const auto all_of = [this](const std::set<int>& told) {
    return std::includes(told.begin(), told.end(), inquiry_->asked.begin(), inquiry_->asked.end());
  };
  if (!all_of(inquiry_->told_where) || (inquiry_->over && !all_of(inquiry_->told_stacks))) return;
  loop_.cancel(inquiry_->timer);
  conclude();
}

void StallWatch::conclude() {
  const Inquiry done = std::move(*inquiry_);
  inquiry_.reset();
  const std::vector<RankPlace> all = places(&done);
  StallVerdict verdict = judge(done.stall, all);
  if (!done.over) {
    if (verdict.kind == Failure::hang)
      events_.on_warning(str("warning: ", verdict.message, "; that is half of its time limit (launch.collective)"));
    return;
  }
  if (done.stall.kind == Stall::Kind::collective && verdict.kind == Failure::hang)
    verdict.message += str("; its time limit is ", human_seconds(done.stall.limit),
                           " (launch.collective), to be raised where ranks are only slow");
  over_ = true;
  const int at = verdict.ranks.empty() ? done.stall.rank : verdict.ranks.front();
  int64_t step = -1;
  for (const RankPlace& place : all)
    if (place.report.rank == at) step = place.report.position.step;
  events_.on_stall({verdict, step, hang_table(all, verdict, done.stacks), hang_json(all, verdict, done.stacks)});
}

// No rank says that it stays in one place: it is the place that does not change.
void StallWatch::check_places() {
  if (over_) return;
  const std::vector<RankPlace> all = places(nullptr);
  const double shortest = step_timeout_ > 0 ? std::min(step_timeout_, launch_.rendezvous) : launch_.rendezvous;
  const double pause = std::clamp(shortest / 10, 0.05, 1.0);
  const Clock::time_point now = Clock::now();
  // A job that was suspended as a whole has not stayed where it was.
  if (!watched_since_ || seconds_between(last_look_, now) > pause + longest_delay) watched_since_ = now;
  last_look_ = now;
  // Without the time since a rank elsewhere last reported: it may have moved on.
  const auto age = [watched = seconds_between(*watched_since_, now)](const RankPlace& place) {
    return std::min(place.report.age - place.told, watched);
  };
  // A rank may wait for another that makes a cache of the same data.
  double read_age = std::numeric_limits<double>::infinity();
  for (const RankPlace& place : all)
    if (place.known && place.report.position.phase == reading_phase) read_age = std::min(read_age, age(place));
  bool set_up = all.empty();
  for (const RankPlace& place : all) {
    const std::string& phase = place.report.position.phase;
    const bool before = !place.known || is_set_up(phase);
    set_up |= before;
    Stall stall;
    stall.kind = before ? Stall::Kind::set_up : Stall::Kind::step;
    stall.rank = place.report.rank;
    stall.seconds = phase == reading_phase ? read_age : age(place);
    stall.limit = before ? launch_.rendezvous : step_timeout_;
    const bool late = stall.seconds > stall.limit + (before ? set_up_slack : 0);
    if (place.known && phase != "done" && stall.limit > 0 && late) return inquire(stall, true);
  }
  if (!set_up && step_timeout_ <= 0) return;
  loop_.after(milliseconds(static_cast<int64_t>(pause * 1000)), [this, alive = alive_] {
    if (*alive) check_places();
  });
}

bool StallWatch::suspended(int rank) const {
  const auto found = here_.find(rank);
  if (found == here_.end()) return false;
  std::ifstream file(str("/proc/", found->second, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");
  return end != std::string::npos && end + 2 < line.size() && (line[end + 2] == 'T' || line[end + 2] == 't');
}

RankPlace StallWatch::place_of(const RankPlan& rank, const Inquiry* inquiry) const {
  RankPlace place;
  place.report.rank = rank.rank;
  if (const auto process = static_cast<size_t>(rank.process); process < hosts_.size()) place.host = hosts_[process];
  place.suspended = suspended(rank.rank);
  if (inquiry != nullptr) {
    if (const auto answer = inquiry->reports.find(rank.rank); answer != inquiry->reports.end()) {
      place.report = answer->second;
      place.known = place.answered = true;
      return place;
    }
  }
  if (const auto report = read_report(rank.rank, str(folder_, "/logs/rank", rank.rank, ".state"))) {
    place.report = *report;
    place.known = true;
  } else if (const auto last = heard_.find(rank.rank); last != heard_.end()) {
    place.report = last->second.report;
    place.told = seconds_between(last->second.at, Clock::now());
    place.report.age += place.told;
    place.known = true;
  }
  return place;
}

std::vector<RankPlace> StallWatch::places(const Inquiry* inquiry) const {
  std::vector<RankPlace> all;
  if (!job_) return all;
  for (const RankPlan& rank : job_->ranks) all.push_back(place_of(rank, inquiry));
  return all;
}

StallVerdict StallWatch::difference() const { return call_difference(places(nullptr)); }

std::optional<RankReport> StallWatch::position(int rank) const {
  if (!job_ || rank < 0 || rank >= static_cast<int>(job_->ranks.size())) return std::nullopt;
  const RankPlace place = place_of(job_->ranks[static_cast<size_t>(rank)], nullptr);
  if (!place.known) return std::nullopt;
  return place.report;
}

}  // namespace convoy
