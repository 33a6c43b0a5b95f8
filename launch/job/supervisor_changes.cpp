// JobSupervisor: changes of the ranks of its job (launch.min_ranks), and what follows their results.
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/control/assignment.h"
#include "launch/job/job_supervisor.h"

namespace convoy {

std::optional<Abort> JobSupervisor::loss(int process, const ProcessEnd& end, const std::string& how) const {
  if (end.signal == 0 || !may_change()) return std::nullopt;
  const int rank = failed_rank_of(process);
  const int64_t step = step_of(rank);
  const std::optional<Abort> reported = reported_failure(process);
  return Abort{Failure::peer_lost,
               rank,
               step,
               end.signal,
               participants_[static_cast<size_t>(process)].host,
               !how.empty() ? label(process) + how
                            : str(label(process), " ", end_text(end), step >= 0 ? str(" at step ", step) : "",
                                  reported && !reported->message.empty() ? ": " + reported->message : "")};
}

bool JobSupervisor::may_change() const {
  if (cause_ || stop_signal_ != 0 || !assignment_) return false;
  // On a busy machine a rank may train before its info arrives.
  const auto started = [this](const RankPlan& rank) { return infos_.count(rank.rank) > 0 || step_of(rank.rank) >= 0; };
  const std::vector<RankPlan>& ranks = assignment_->job.ranks;
  if (!continues_ && !std::all_of(ranks.begin(), ranks.end(), started)) return false;
  if (!assignment_->job.config.program.empty() && !in_loop()) return false;
  // The results of ranks that have ended are those of this membership.
  return std::none_of(participants_.begin(), participants_.end(),
                      [](const Participant& participant) { return participant.end.has_value(); });
}

// Before Run::each_batch a program cannot continue with other ranks; after it, begin_change refuses. Ranks of an
// earlier membership are inside, and wait there for ranks that join.
bool JobSupervisor::in_loop() const { return continues_ || in_loop_.size() >= assignment_->job.ranks.size(); }

bool JobSupervisor::ends() const {
  if (!assignment_ || result_ || !results_.empty()) return true;
  return std::any_of(assignment_->job.ranks.begin(), assignment_->job.ranks.end(),
                     [this](const RankPlan& rank) { return phase_of(rank.rank) == "done"; });
}

bool JobSupervisor::begin_change() {
  try {
    return channel_->compare_set(protocol::membership_end, "", protocol::changes) == protocol::changes;
  } catch (const CommError&) {
    return false;  // a rank has reported a failure, which ends the job
  }
}

// Failure cause if a process is lost during a requested stop, before all ranks have saved.
Abort JobSupervisor::unsaved_stop(int process, const std::string& what) const {
  Abort reason = stop_reason();
  reason.host = participants_[static_cast<size_t>(process)].host;
  reason.message = str("stopped by SIG", sigabbrev_np(stop_signal_), " before all ranks had saved: ", what,
                       "; the same command resumes from the newest checkpoint, if there is one");
  return reason;
}

void JobSupervisor::fail_unreachable(int process, const std::string& how, Failure kind) {
  Participant& participant = participants_[static_cast<size_t>(process)];
  if (cause_ || participant.end) return;
  const std::string who = str(label(process), " (membership ", assignment_->membership + 1, ")", how);
  if (stop_signal_ != 0) return fail(unsaved_stop(process, who));
  const int rank = failed_rank_of(process);
  fail({kind, rank, step_of(rank), 0, participant.host, str(who, ", and the job cannot continue without it")});
}

void JobSupervisor::launcher_gone(int process, const std::string& why) {
  if (process < 0 || process >= static_cast<int>(participants_.size())) return;
  if (!retired_ && lost_after_results(process)) return;
  if (!cause_ && stop_signal_ == 0 && events_.on_unreachable &&
      events_.on_unreachable(process, true, ": " + why, Failure::rendezvous))
    return;
  // The caller may see the end of the same launcher half a second later, and then reports more about it.
  tasks_.after(std::chrono::milliseconds(700), [this, process, why] {
    if (!cause_ && !retired_ && !only_exits()) fail_launcher(process, why);
  });
}

void JobSupervisor::fail_launcher(int process, const std::string& why, int signal) {
  if (stop_signal_ != 0) return fail(unsaved_stop(process, why));
  const int rank = first_rank(process);
  fail({Failure::rendezvous, rank, step_of(rank), signal, participants_[static_cast<size_t>(process)].host, why});
}

void JobSupervisor::retire(const Json& next, const Abort& loss, std::vector<int> started) {
  retired_ = true;
  started_ = std::move(started);
  stalls_.reset();
  channel_->set(protocol::next_membership, next.dump());
  channel_->abort(loss);
}

// --- After the results ---

// True if processes only have to exit after the results: those of a user's program may do any other work. Needs a
// published job.
bool JobSupervisor::limits_exits() const { return assignment_->job.config.program.empty(); }

bool JobSupervisor::only_exits() const { return complete() && limits_exits(); }

// Ranks that have given their results only have to exit.
void JobSupervisor::await_exits() {
  if (!limits_exits()) return;
  tasks_.after(to_milliseconds(request_.launch.collective), [this] {
    for (int process = 0; process < static_cast<int>(participants_.size()) && !cause_ && !retired_; ++process) {
      const Participant& participant = participants_[static_cast<size_t>(process)];
      if (participant.end) continue;
      const int rank = failed_rank_of(process);
      return fail({Failure::hang, rank, step_of(rank), 0, participant.host,
                   str(label(process), " did not exit within ", human_seconds(request_.launch.collective),
                       " (launch.collective) after all ranks had given their results, which are complete")});
    }
  });
}

bool JobSupervisor::lost_after_results(int process) {
  Participant& participant = participants_[static_cast<size_t>(process)];
  if (!participant.end && only_exits()) participant.end = ProcessEnd{};
  return participant.end.has_value();
}

void JobSupervisor::publish_exit_code(int exit_code) {
  try {
    channel_->set(job_topic::exit_code, std::to_string(exit_code));
  } catch (const Error&) {
    // The channel is closed: no agent is left.
  }
}

}  // namespace convoy
