// RunAttempt: continues without a killed process (launch.min_ranks).
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "core/base/log.h"
#include "core/base/text.h"
#include "core/control/assignment.h"
#include "core/control/exit_codes.h"
#include "core/files/limits.h"
#include "core/rank_state/summary.h"
#include "launch/job/membership.h"
#include "launch/job/run_attempt.h"

namespace convoy {
namespace {

std::string ranks_and(size_t ranks, const std::string& verb) { return str(counted(ranks, "rank"), " ", verb); }

}  // namespace

bool RunAttempt::keeps_ranks() const { return assignment_ && continues_without_lost_ranks(*assignment_); }

int RunAttempt::current_process(int process) const {
  return current_processes_.empty() ? process : current_processes_.at(static_cast<size_t>(process));
}

void RunAttempt::line(int process, const std::string& text) {
  const int current = current_process(process);
  const bool before = std::exchange(direct_line_, true);
  if (joining_ && joining_->processes.count(process) > 0)
    joining_->supervisor->line(joining_->processes.at(process), text);
  else if (current >= 0)
    supervisor_->line(current, text);
  else
    console_.rank_line("", process, text);
  direct_line_ = before;
}

void RunAttempt::ended(int process, const ProcessEnd& end) {
  if (joining_ && joining_->processes.count(process) > 0)
    return joining_failed(
        str("its process ", end_text(end), "; see logs/rank", joining_->processes.at(process), ".log"));
  const int current = current_process(process);
  if (current < 0) return;
  const std::optional<Abort> loss = keeps_ranks() ? supervisor_->loss(current, end) : std::nullopt;
  if (loss && continue_without(current, *loss)) return;
  drop_joining();  // the job ends
  supervisor_->ended(current, end);
}

bool RunAttempt::is_unreachable(int process, bool started, const std::string& how, Failure kind) {
  const int current = started ? current_process(process) : process;
  if (current < 0) return true;  // it has left already
  if (started && supervisor_->lost_after_results(current)) return true;
  if (!keeps_ranks()) return false;
  const std::optional<Abort> loss = supervisor_->loss(current, {0, SIGKILL}, how);
  if (loss && continue_without(current, *loss)) return true;
  // The supervisor that noticed the loss may be that of an earlier membership, which cannot end the job.
  if (started && !retired_.empty()) supervisor_->fail_unreachable(current, how, kind);
  return false;
}

bool RunAttempt::lost(int process, const std::string& message, int signal) {
  if (is_unreachable(process, true, ": " + message, Failure::rendezvous)) return true;
  supervisor_->fail_launcher(current_process(process), message, signal);
  return false;
}

bool RunAttempt::continue_without(int process, const Abort& loss) {
  NextMembership next;
  try {
    next = without_process(run_, hosts_, assignment_->job, process);
  } catch (const Error& error) {
    console_.log(str("no layout for the ranks that are left, so the job does not continue: ", error.what()));
    return false;
  }
  const auto least = static_cast<size_t>(run_.config.launch.min_ranks);
  if (next.job.ranks.size() < least || next.job.ranks.empty()) {
    console_.log(str("launch.min_ranks is ", least, ", and only ", ranks_and(next.job.ranks.size(), "would be"),
                     " left: the job does not continue"));
    return false;
  }
  const JobPlan before = assignment_->job;
  const RankAssignment assignment = next_assignment(next.job, next.lost.empty());
  const JobRequest request = request_of(next.job);
  std::unique_ptr<JobSupervisor> supervisor;
  try {
    supervisor = std::make_unique<JobSupervisor>(loop_, request, events_);
  } catch (const std::exception& error) {
    console_.log(str("the job cannot continue without rank ", loss.rank, ": ", error.what()));
    return false;
  }
  if (!supervisor_->begin_change()) return false;
  const auto lost_at = std::chrono::steady_clock::now();
  drop_joining();  // it knows the ranks before
  supervisor->publish(assignment);
  Json who = Json::array();
  std::vector<RankPlan> left;
  for (size_t rank = 0; rank < next.ranks.size(); ++rank) {
    if (next.ranks[rank] >= 0) continue;
    who.push_back(rank);
    left.push_back(before.ranks[rank]);
  }
  vacant_.push_back(std::move(left));
  record_change({{"membership", assignment.membership + 1},
                 {"attempt", assignment.attempt},
                 {"step", nullptr},
                 {"left", who},
                 {"host", loss.host},
                 {"why", loss.message},
                 {"ranks", next.job.ranks.size()},
                 {"lost_state", next.lost.empty() ? Json() : Json(next.lost)},
                 {"seconds", nullptr}},
                {lost_at, ""});
  change_membership(std::move(supervisor), assignment, request, next.ranks, loss);
  replace_lost(0);
  return true;
}

JobRequest RunAttempt::request_of(const JobPlan& job) const {
  JobRequest request = request_;
  request.processes = static_cast<int>(job.processes.size());
  request.has_agents = request.joins || request.has_agents;
  request.joins = false;
  request.hosts.clear();
  for (const RankPlan& rank : job.ranks) request.hosts.push_back(hosts_.hosts.at(static_cast<size_t>(rank.host)).name);
  return request;
}

RankAssignment RunAttempt::next_assignment(const JobPlan& job, bool in_memory) const {
  RankAssignment assignment = *assignment_;
  assignment.job = job;
  ++assignment.membership;
  assignment.in_memory = in_memory;
  assignment.data = checked_data_;
  // If no rank has the state in memory, the ranks read it from the newest checkpoint.
  if (policy_.newest_checkpoint() >= 0)
    assignment.job.config = assignment.job.config.changed({{"train", {{"resume", "auto"}}}});
  return assignment;
}

void RunAttempt::record_change(Json change, const UnfinishedChange& unfinished) {
  policy_.memberships().push_back(std::move(change));
  unfinished_.push_back(unfinished);
  summary_["membership"] = policy_.memberships();
  write_running();
}

// `ranks`: by rank of the membership before, its rank in the next one, or -1. `reason`: ends the waits of the ranks.
void RunAttempt::change_membership(std::unique_ptr<JobSupervisor> next, const RankAssignment& assignment,
                                   const JobRequest& request, const std::vector<int>& ranks, const Abort& reason) {
  request_ = request;
  retired_.push_back(std::move(supervisor_));
  supervisor_ = std::move(next);
  assignment_ = assignment;
  std::vector<int> started_as(ranks.size(), -1);
  for (size_t started = 0; started < current_processes_.size(); ++started)
    if (current_processes_[started] >= 0)
      started_as.at(static_cast<size_t>(current_processes_[started])) = static_cast<int>(started);
  // The next ranks make new files for their positions.
  for (size_t rank = 0; rank < ranks.size(); ++rank) unlink(str(folder_.path, "/logs/rank", rank, ".state").c_str());
  for (size_t started = 0; started < current_processes_.size(); ++started) {
    int& current = current_processes_[started];
    if (current < 0) continue;
    current = ranks.at(static_cast<size_t>(current));
    // A process without a rank in the next membership must end: a suspended one, and the others of its replica.
    if (current < 0 && on_left_) on_left_(static_cast<int>(started));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank] >= 0)
      logs_.write(ranks[rank],
                  str("convoy: membership ", assignment.membership + 1, ": the rank that was rank ", rank));
  retired_.back()->retire({{"channel", to_string(supervisor_->address())}, {"ranks", ranks}}, reason,
                          std::move(started_as));
}

// Rank 0 of the new membership reports the step with which the ranks continue.
void RunAttempt::continued(const Json& body) {
  if (unfinished_.empty()) return;
  Json& changes = policy_.memberships();
  std::vector<std::string> reasons;
  for (size_t change = changes.size() - unfinished_.size(); change < changes.size(); ++change) {
    changes[change]["step"] = body.at("step");
    changes[change]["state"] = body.at("in_memory").get<bool>() ? "memory" : "checkpoint";
    // A reason names ranks by their numbers in the membership that it ended.
    const std::string in =
        reasons.empty() ? "" : str("in membership ", changes[change]["membership"].get<int>() - 1, " ");
    reasons.push_back(in + changes[change]["why"].get<std::string>());
  }
  const int64_t step = body.at("step").get<int64_t>();
  std::string from;
  if (!body.at("in_memory").get<bool>()) {
    from = step > 0 ? ", from the newest checkpoint" : ", from the beginning, since there is no checkpoint";
    if (const Json lost = changes.back().value("lost_state", Json()); lost.is_string())
      from += ": " + lost.get<std::string>();
  }
  console_.log(
      str("membership ", assignment_->membership + 1, ": ", join(reasons, "; then "), "; ",
          ranks_and(assignment_->job.ranks.size(), assignment_->job.ranks.size() == 1 ? "continues" : "continue"),
          " with step ", step, from));
  summary_["membership"] = changes;
  write_running();
}

void RunAttempt::first_step_done() {
  Json& changes = policy_.memberships();
  for (size_t left = unfinished_.size(); left > 0; --left) {
    const UnfinishedChange& done = unfinished_[unfinished_.size() - left];
    Json& change = changes[changes.size() - left];
    change["seconds"] = seconds_since(done.since);
    if (done.asked.empty()) continue;
    const std::vector<int> joined = change.at("joined");
    requests_->answer(done.asked, {exit_code::done, str(named_ranks(joined), joined.size() == 1 ? " takes" : " take",
                                                        " part since step ", change.at("step").dump(), ": ",
                                                        ranks_and(assignment_->job.ranks.size(), "train"))});
  }
  const bool changed = !unfinished_.empty();
  unfinished_.clear();
  if (run_.config.launch.min_ranks > 0) summary_["membership"] = changes;
  summary_["ranks"] = ranks_json(supervisor_->outcome().ranks);  // a user may want to attach a debugger
  // summary.json may have the end of the run already.
  if (!supervisor_->stopping() && !supervisor_->failed()) write_running();
  if (!changed) return;
  add_joining();
  if (!joining_) replace_lost(0);  // other lost ranks may need a replacement
}

}  // namespace convoy
