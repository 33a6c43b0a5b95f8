// RunAttempt: ranks that join a running job (launch.min_ranks), for a lost rank under launch.max_restarts or on request
// (`convoy run --join`).
//
// The new process starts while the others train: it reads its work on the channel of the next membership, loads its
// data, and reports that it is ready. Then the membership changes, and the new rank receives the state from the others.
// If the process ends before, no rank has waited for it.
#include <unistd.h>

#include <numeric>

#include "backends/catalogue/catalogue.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/control/assignment.h"
#include "core/control/exit_codes.h"
#include "launch/job/membership.h"
#include "launch/job/run_attempt.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

constexpr std::chrono::milliseconds request_interval{100};

JoinAnswer answer_of_ending_run() {
  return {exit_code_of(Failure::output),
          "the run ended, stopped or lost a rank before the new rank was ready; if it still runs, type the command "
          "again"};
}

}  // namespace

// Returns why no rank can join a run of this kind; "" if one can.
std::string RunAttempt::cannot_join() const {
  if (!start_)
    return "ranks join only a run whose processes this convoy starts itself: on one machine or by --hosts, without "
           "another launcher";
  const JobPlan& job = assignment_->job;
  if (!backend_entry(job.backend).no_lost_rank.empty())
    return str("ranks join over backend gloo, and this run has ", job.backend);
  if (const std::string lost = strategy_of(run_.config).state_of_lost_rank(job); !lost.empty())
    return str("a new rank cannot receive the state from another one, because ", lost);
  return "";
}

// Uses a restart for a process in the place of a lost rank, after `delay` seconds.
void RunAttempt::replace_lost(double delay) {
  tasks_.after(to_milliseconds(delay), [this] {
    if (joining_ || vacant_.empty() || !policy_.may_restart() || !supervisor_->may_change()) return;
    if (const std::string reason = cannot_join(); !reason.empty()) {
      vacant_.clear();  // the reason holds for the whole attempt
      return console_.log(str("no rank takes the place of a lost one (launch.max_restarts): ", reason));
    }
    begin_joining(vacant_.front(), true,
                  str("in the place of a lost rank, restart ", policy_.budget().used() + 1, " of ",
                      policy_.budget().most(), " (launch.max_restarts)"),
                  "");
  });
}

// Starts processes for these ranks. `asked`: token of the request, or "" for a restart.
void RunAttempt::begin_joining(const std::vector<RankPlan>& plans, bool replaces, const std::string& why,
                               const std::string& asked) {
  dropped_.clear();
  auto joining = std::make_unique<Joining>();
  joining->since = std::chrono::steady_clock::now();
  joining->assignment = next_assignment(with_replica(assignment_->job, plans), true);
  joining->request = request_of(joining->assignment.job);
  joining->state = std::make_shared<Joining::State>(Joining::State::starts);
  joining->supervisor = std::make_unique<JobSupervisor>(loop_, joining->request, events_of_joining(joining->state));
  joining->supervisor->publish(joining->assignment);
  joining->replaces = replaces;
  joining->why = why;
  joining->asked = asked;
  joining_ = std::move(joining);
  if (replaces) policy_.budget().take();
  const std::string channel = to_string(joining_->supervisor->address());
  try {
    for (size_t rank = assignment_->job.ranks.size(); rank < joining_->assignment.job.ranks.size(); ++rank) {
      const int number = static_cast<int>(rank), started = static_cast<int>(current_processes_.size());
      logs_.write(number, str("convoy: a process starts for rank ", rank, " of membership ",
                              joining_->assignment.membership + 1));
      joining_->awaited.insert(number);
      joining_->processes[started] = number;
      current_processes_.push_back(-1);
      start_(started, joining_->assignment, number, channel);
    }
  } catch (const std::exception& error) {
    return joining_failed(error.what());
  }
  console_.log(str("a process starts for ", joining_text(), ": ", why));
  tasks_.after(to_milliseconds(run_.config.launch.rendezvous), [this, state = joining_->state] {
    if (*state == Joining::State::starts)
      joining_failed(str("not ready after ", human_seconds(run_.config.launch.rendezvous), " (launch.rendezvous); ",
                         folder_.path, "/logs has what the new process wrote"));
  });
}

std::string RunAttempt::joining_text() const {
  std::vector<int> ranks;
  for (const auto& process : joining_->processes) ranks.push_back(process.second);
  return named_ranks(ranks);
}

// Until the new ranks take part, nothing that happens to them concerns the job.
JobEvents RunAttempt::events_of_joining(const std::shared_ptr<Joining::State>& state) {
  JobEvents events = events_;
  const auto trains = [state] { return *state == Joining::State::trains; };
  events.on_failure = [this, state, failed = events_.on_failure](const Abort& cause) {
    if (*state == Joining::State::trains) failed(cause);
    if (*state == Joining::State::starts) joining_failed(cause.message);
  };
  events.on_unreachable = [this, state, unreachable = events_.on_unreachable](int process, bool started,
                                                                              const std::string& how, Failure kind) {
    if (*state == Joining::State::trains) return unreachable(process, started, how, kind);
    if (*state == Joining::State::starts) joining_failed("it" + how);
    return true;
  };
  events.on_stop = [this, state, stop = events_.on_stop](int signal) {
    if (*state == Joining::State::trains) stop(signal);
    if (*state == Joining::State::starts) joining_failed("its process was asked to stop");
  };
  events.on_saved = [trains, saved = events_.on_saved] {
    if (trains()) saved();
  };
  events.on_rank_ready = [this, state](int rank) {
    if (*state != Joining::State::starts) return;
    joining_->awaited.erase(rank);
    add_joining();
  };
  return events;
}

// Changes the membership when the new ranks are ready, unless the job still makes an earlier change, or ends.
void RunAttempt::add_joining() {
  if (!joining_ || !joining_->awaited.empty() || !unfinished_.empty()) return;
  if (!supervisor_->may_change() || supervisor_->ends() || !supervisor_->begin_change()) return drop_joining();
  const std::unique_ptr<Joining> joining = std::move(joining_);
  *joining->state = Joining::State::trains;
  std::vector<int> ranks(assignment_->job.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  Json joined = Json::array();
  for (const auto& [started, process] : joining->processes) {
    joined.push_back(process);
    logs_.write(process, str("convoy: membership ", joining->assignment.membership + 1, ": this rank joins"));
  }
  const std::string joins = str(named_ranks(joined.get<std::vector<int>>()), joined.size() == 1 ? " joins" : " join");
  failed_joins_ = 0;
  if (!vacant_.empty()) vacant_.erase(vacant_.begin());
  record_change({{"membership", joining->assignment.membership + 1},
                 {"attempt", joining->assignment.attempt},
                 {"step", nullptr},
                 {"joined", joined},
                 {"host", host_name()},
                 {"why", str(joins, " (", joining->why, ")")},
                 {"ranks", joining->assignment.job.ranks.size()},
                 {"seconds", nullptr}},
                {joining->since, joining->asked});
  change_membership(std::move(joining->supervisor), joining->assignment, joining->request, ranks,
                    {Failure::peer_lost, -1, -1, 0, host_name(), joins + " the job"});
  for (const auto& [started, process] : joining->processes) current_processes_[static_cast<size_t>(started)] = process;
  supervisor_->await_ranks();
}

// The new ranks have failed by themselves. Tries again if the restarts allow it.
void RunAttempt::joining_failed(const std::string& reason) {
  const bool replaces = joining_->replaces;
  console_.log(str(joining_text(), " did not join: ", reason, "; the others continue"));
  answer_joining({exit_code_of(Failure::rendezvous), str("the rank did not join: ", reason)});
  joining_->replaces = false;  // the restart is used
  drop_joining();
  if (replaces) replace_lost(retry_delay(run_.config.launch.backoff, ++failed_joins_));
}

void RunAttempt::answer_joining(const JoinAnswer& answer) {
  if (joining_->asked.empty()) return;
  requests_->answer(joining_->asked, answer);
  joining_->asked.clear();
}

// Ends the processes of ranks that have not joined. If they replace lost ranks, their restart no longer counts.
void RunAttempt::drop_joining() {
  if (!joining_) return;
  answer_joining(answer_of_ending_run());
  *joining_->state = Joining::State::dropped;
  if (joining_->replaces) policy_.budget().give_back();
  for (const auto& [started, process] : joining_->processes) {
    if (on_left_) on_left_(started);
    unlink(str(folder_.path, "/logs/rank", process, ".state").c_str());
  }
  dropped_.push_back(std::move(joining_->supervisor));
  joining_.reset();
}

// --- Requests of `convoy run --join` ---

void RunAttempt::read_requests() {
  if (!requests_) return;
  // A request waits until the ranks have started.
  const bool ends = supervisor_->ends() || supervisor_->failed() || supervisor_->stopping();
  if (const auto asked = ends || supervisor_->may_change() ? requests_->take() : std::nullopt) {
    try {
      add_rank_for(*asked);
    } catch (const std::exception& error) {
      requests_->answer(*asked, {exit_code_of(Failure::config), error.what()});
    }
  }
  tasks_.after(request_interval, [this] { read_requests(); });
}

void RunAttempt::add_rank_for(const std::string& asked) {
  if (joining_)
    return requests_->answer(
        asked, {exit_code_of(Failure::rendezvous),
                str("a process starts for ", joining_text(), " already; type the command again when it takes part")});
  if (const std::string reason = cannot_join(); !reason.empty())
    return requests_->answer(asked, {exit_code_of(Failure::config), reason});
  if (!supervisor_->may_change()) return requests_->answer(asked, answer_of_ending_run());
  const std::vector<RankPlan> plans =
      vacant_.empty() ? std::vector<RankPlan>{placement_of_next_rank(run_, hosts_, assignment_->job)} : vacant_.front();
  begin_joining(plans, false, "requested by `convoy run --join`", asked);
}

}  // namespace convoy
