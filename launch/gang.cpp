#include "launch/gang.h"

#include <algorithm>

#include <signal.h>
#include <string.h>

#include "core/config/run_config.h"
#include "core/control/phases.h"
#include "core/control/protocol.h"
#include "core/control/state_file.h"
#include "core/units.h"
#include "launch/exit_codes.h"
#include "launch/stacks.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Time for an abort or a result that is on its way when the end of its process is known already.
constexpr milliseconds settling{200};

milliseconds to_milliseconds(double seconds) { return milliseconds(static_cast<int64_t>(seconds * 1000)); }

std::string stopped_text(int signal, bool resumes) {
  return str("stopped by ", signal != 0 ? str("SIG", sigabbrev_np(signal)) : "request",
             resumes ? "; the same command goes on from the checkpoint" : "; the same command starts anew");
}

int number_after(const std::string& key, const char* prefix) { return std::atoi(key.c_str() + strlen(prefix)); }

}  // namespace

Gang::Gang(EventLoop& loop, const GangRequest& request, GangEvents events)
    : loop_(loop), request_(request), events_(std::move(events)), members_(static_cast<size_t>(request.processes)) {
  ChannelServerOptions options;
  options.interface_address = request_.address;
  options.port = static_cast<uint16_t>(request_.launch.port);
  options.job = request_.job;
  options.heartbeat = to_milliseconds(request_.launch.heartbeat);
  server_ = serve_channel(options, server_events());
  // No agent has this number, nor any rank.
  channel_ = connect_channel(server_->address(), -1 - request_.processes, "convoy", rendezvous());
  StallWatch::Events stalls;
  stalls.on_warning = [this](const std::string& text) {
    if (events_.on_notice && !cause_) events_.on_notice(text);
  };
  stalls.on_stall = [this](const StallWatch::Found& found) { stalled(found); };
  stalls_ = std::make_unique<StallWatch>(loop_, channel_, request_.launch, stalls);
  watch_results();
  if (request_.joins)
    loop_.after(rendezvous(), [this, alive = alive_] {
      if (!*alive || all_joined_ || cause_) return;
      std::vector<std::string> missing;
      for (size_t i = 0; i < members_.size(); ++i)
        if (!members_[i].joined) missing.push_back(std::to_string(i));
      fail({Failure::rendezvous, std::atoi(missing.front().c_str()), -1, 0, "",
            str("missing after ", human_seconds(request_.launch.rendezvous), " (launch.rendezvous): rank ",
                join(missing, ", "), " of ", members_.size(), "; look for them in the launcher's output")});
    });
}

Gang::~Gang() {
  *alive_ = false;
  stalls_.reset();
  channel_.reset();
  server_.reset();
}

milliseconds Gang::rendezvous() const { return to_milliseconds(request_.launch.rendezvous); }

ChannelServerEvents Gang::server_events() {
  auto later = [this](std::function<void()> task) {
    loop_.post([alive = alive_, task = std::move(task)] {
      if (*alive) task();
    });
  };
  ChannelServerEvents events;
  events.on_post = [this, later](int participant, const std::string& topic, const Json& body) {
    later([this, participant, topic, body] { posted(participant, topic, body); });
  };
  events.on_leave = [this, later](int participant, const std::string&, bool orderly) {
    later([this, participant, orderly] { left(participant, orderly); });
  };
  events.on_abort = [this, later](const Abort& reason) { later([this, reason] { aborted(reason); }); };
  events.on_silent = [this, later](int participant, const std::string&, double seconds) {
    later([this, participant, seconds] { silent(participant, seconds); });
  };
  return events;
}

void Gang::watch_results() {
  auto keep = [this](std::function<void(const std::string&, const Json&)> store) {
    return [this, store, alive = alive_](const std::string& key, const std::string& value) {
      loop_.post([store, alive, key, value] {
        if (*alive) store(key, Json::parse(value));
      });
    };
  };
  channel_->watch(protocol::rank_info, keep([this](const std::string& key, const Json& value) {
                    const int rank = number_after(key, protocol::rank_info);
                    infos_[rank] = value;
                    stalls_->know(rank, value);
                  }));
  channel_->watch(protocol::result, keep([this](const std::string& key, Json value) {
                    if (key == protocol::result) {
                      ranks_stopped_ = value.value(protocol::stopped_early, false);
                      value.erase(protocol::stopped_early);
                      result_ = value;
                    } else {
                      results_[number_after(key, protocol::rank_result)] = value;
                    }
                    result_came();
                  }));
}

// A launcher that was asked to stop soon kills this process too, so report the end now.
void Gang::result_came() {
  if (!saved() || cause_ || !events_.on_saved) return;
  events_.on_saved();
}

void Gang::publish(const Assigned& assigned) {
  assigned_ = assigned;
  for (size_t i = 0; i < members_.size() && i < assigned.job.processes.size(); ++i)
    if (members_[i].host.empty()) members_[i].host = host_name();
  std::vector<std::string> hosts;
  for (const Member& member : members_) hosts.push_back(member.host);
  stalls_->begin(assigned.job, assigned.folder, hosts);
  channel_->set(protocol::job, to_json(assigned).dump());
  // The ranks have R for themselves; this only catches what they cannot say.
  loop_.after(rendezvous() + milliseconds(500), [this, alive = alive_] {
    if (*alive) check_ranks_started();
  });
}

void Gang::check_ranks_started() {
  if (cause_ || over()) return;
  std::vector<std::string> missing;
  for (const RankPlan& rank : assigned_->job.ranks)
    if (infos_.count(rank.rank) == 0 && !stalls_->position(rank.rank)) missing.push_back(std::to_string(rank.rank));
  if (missing.empty()) return;
  fail({Failure::rendezvous, std::atoi(missing.front().c_str()), -1, 0, "",
        str("not ready after ", human_seconds(request_.launch.rendezvous), " (launch.rendezvous): rank ",
            join(missing, ", "), "; see logs/rank", missing.front(), ".log")});
}

int Gang::first_rank(int process) const {
  return assigned_ ? assigned_->job.processes.at(static_cast<size_t>(process)).ranks.front() : process;
}

std::string Gang::label(int process) const {
  const std::string& host = members_[static_cast<size_t>(process)].host;
  const std::string where = host.empty() ? "" : str(" on ", host);
  const int rank = culprit_of(process);
  if (rank >= 0) return str("rank ", rank, where);
  return str("the process of ranks ", ranks_text(assigned_->job.processes.at(static_cast<size_t>(process)).ranks),
             where);
}

int64_t Gang::step_of(int rank) const {
  if (!assigned_ || rank < 0) return -1;
  const auto report = stalls_->position(rank);
  return report ? report->position.step : -1;
}

// "; rank 0: saving, step 20; rank 1: …", of the first few; `process`: of its ranks, -1: of all.
std::string Gang::where_ranks_were(int process) const {
  constexpr size_t most = 4;
  std::vector<std::string> places;
  for (size_t rank = 0; assigned_ && rank < assigned_->job.ranks.size() && places.size() <= most; ++rank) {
    if (process >= 0 && assigned_->job.ranks[rank].process != process) continue;
    const int number = static_cast<int>(rank);
    const std::string phase = phase_of(number);
    const int64_t step = step_of(number);
    if (!phase.empty()) places.push_back(str("; rank ", number, ": ", phase, step >= 0 ? str(", step ", step) : ""));
  }
  if (places.size() > most) places.back() = "; …";
  return join(places, "");
}

// Whose end a process' end is: that of its one rank, of the rank whose thread crashed (launch/rank/crash.h), or of nobody
// that is known: -1.
int Gang::culprit_of(int process) const {
  if (!assigned_) return first_rank(process);
  const std::vector<int>& ranks = assigned_->job.processes.at(static_cast<size_t>(process)).ranks;
  if (ranks.size() == 1) return ranks.front();
  for (const int rank : ranks)
    if (phase_of(rank) == crashed_phase) return rank;
  return -1;
}

std::string Gang::phase_of(int rank) const {
  const auto position =
      assigned_ ? read_state_file(str(assigned_->folder, "/logs/rank", rank, ".state")) : std::nullopt;
  return position ? position->phase : "";
}

void Gang::line(int process, const std::string& text) {
  events_.on_line(first_rank(process), members_[static_cast<size_t>(process)].host, readable_line(text));
}

void Gang::add_local_agent(int process, const Json& host) {
  members_[static_cast<size_t>(process)].left = true;  // its end is told directly
  add_agent(process, host);
}

void Gang::add_agent(int process, const Json& host) {
  if (!request_.joins || process < 0 || process >= static_cast<int>(members_.size())) return;
  Member& member = members_[static_cast<size_t>(process)];
  member.joined = true;
  member.topology = host;
  member.host = host.at("name").get<std::string>();
  if (all_joined_ || !joined()) return;
  all_joined_ = true;
  if (cause_) return;  // too late: the job has ended, and what tells of it must not begin anew
  std::vector<Join> joins;
  for (size_t i = 0; i < members_.size(); ++i) joins.push_back({static_cast<int>(i), members_[i].topology});
  if (events_.on_joined) events_.on_joined(joins);
}

// Ranks that were started apart need not have been told the same.
bool Gang::same_size(const Json& body) {
  const auto here = static_cast<int>(members_.size());
  const int size = body.at("size").get<int>(), process = body.at("process").get<int>();
  if (size == here) return true;
  const std::string from = body.at("size_from").get<std::string>();
  fail({Failure::config, process, -1, 0, body.at("host").at("name").get<std::string>(),
        str("rank ", process, " was started as one of ", size, from.empty() ? "" : " (" + from + ")",
            ", and the convoy that serves expects ", here, "; start all ranks with the same number")});
  return false;
}

// Ranks train what the one who serves has read: another file or --set of theirs would be left out without a word.
bool Gang::same_config(const Json& body) {
  const Json theirs = body.value("config", Json());
  if (theirs.is_null() || request_.config.is_null()) return true;
  const std::string key = first_difference(request_.config, theirs, {"launch", "log"});
  if (key.empty()) return true;
  const int process = body.at("process").get<int>();
  fail({Failure::config, process, -1, 0, body.at("host").at("name").get<std::string>(),
        str(key, ": rank ", process,
            " was started with another one than rank 0; start all ranks with the same "
            "configuration and the same --set")});
  return false;
}

void Gang::posted(int participant, const std::string& topic, const Json& body) {
  if (topic == gang_topic::join) {
    if (same_size(body) && same_config(body)) add_agent(body.at("process").get<int>(), body.at("host"));
  } else if (topic == gang_topic::ended) {
    const int process = body.at("process").get<int>();
    const ProcessEnd end{body.at("code").get<int>(), body.at("signal").get<int>(), body.value("lack", "")};
    if (!body.at("made").get<bool>())
      ended(process, end);
    else if (process >= 0 && process < static_cast<int>(members_.size()))
      ended_by_agent(process, end);
  } else if (topic == gang_topic::signalled) {
    // Every agent tells of the same request: none of them is a second one.
    request_stop(body.at("signal").get<int>());
  } else if (topic == protocol::log_line) {
    events_.on_line(body.at("rank").get<int>(), body.at("host").get<std::string>(),
                    readable_line(body.at("line").get<std::string>()));
  } else if (topic == protocol::first_step) {
    events_.on_first_step();
  } else if (!stalls_->posted(topic, body)) {
    events_.on_report(topic, body);
  }
  (void)participant;
}

void Gang::left(int participant, bool orderly) {
  const int process = -1 - participant;
  if (participant >= 0 || process >= static_cast<int>(members_.size())) return;
  Member& member = members_[static_cast<size_t>(process)];
  member.left = true;
  if (member.end) return;
  member.end = ProcessEnd{0, SIGKILL};
  if (cause_ || saved()) return;
  if (stop_signal_ != 0) {
    Abort reason = stop_reason();
    reason.host = member.host;
    reason.message = str("stopped by SIG", sigabbrev_np(stop_signal_), "; the convoy of ", label(process),
                         " was killed before all ranks had saved; the same command goes on from the newest checkpoint");
    return fail(reason);
  }
  fail({Failure::internal, first_rank(process), step_of(first_rank(process)), SIGKILL, member.host,
        str("the convoy of ", label(process), " went away ", orderly ? "before its rank ended" : "without a word",
            ": it was killed, or its host is gone")});
}

void Gang::silent(int participant, double seconds) {
  if (cause_) return;
  const int rank = participant >= 0 ? participant : -1 - participant;
  const size_t known = participant >= 0 && assigned_ ? assigned_->job.ranks.size() : members_.size();
  if (rank >= static_cast<int>(known)) return;
  stalls_->silent(rank, seconds,
                  str(participant >= 0 ? "rank " : "the convoy of rank ", rank, " has sent no heartbeat for ",
                      human_seconds(seconds), " (launch.heartbeat)"));
}

// Whoever waited longest may not be who is to blame: that is the watch's to say, and the job ends by its words.
void Gang::stalled(const StallWatch::Found& found) {
  if (cause_) return;
  stall_ = found.json;
  if (events_.on_notice) events_.on_notice(found.table);
  const int rank = found.verdict.ranks.empty() ? -1 : found.verdict.ranks.front();
  fail({found.verdict.kind, rank, found.step, 0, host_of(rank), found.verdict.message});
}

std::string Gang::host_of(int rank) const {
  if (!assigned_ || rank < 0 || rank >= static_cast<int>(assigned_->job.ranks.size())) return "";
  return members_[static_cast<size_t>(assigned_->job.ranks[static_cast<size_t>(rank)].process)].host;
}

void Gang::ended(int process, const ProcessEnd& end) {
  if (process < 0 || process >= static_cast<int>(members_.size())) return;
  Member& member = members_[static_cast<size_t>(process)];
  if (member.end) return;
  member.end = end;
  if (cause_ || saved()) return;
  if ((end.ok() || stopped_as_asked(end)) && has_results(process)) return;
  if (!end.lack.empty() && !told_failure(process)) {
    const int rank = culprit_of(process);
    return fail({Failure::out_of_memory, rank, step_of(rank), end.signal, member.host,
                 str(label(process), " ", describe(end), ": ", end.lack)});
  }
  if (end.signal == SIGABRT && assigned_) {
    // A library that cannot bear messages of unequal sizes ends its process.
    if (const StallVerdict difference = stalls_->difference(); !difference.message.empty()) {
      const int rank = difference.ranks.empty() ? -1 : difference.ranks.front();
      return fail({difference.kind, rank, step_of(first_rank(process)), 0, host_of(rank), difference.message});
    }
  }
  if (end.signal != 0) {
    Abort reason = told_failure(process).value_or(Abort{});
    const int rank = reason.rank >= 0 ? reason.rank : culprit_of(process);
    const int64_t step = step_of(rank);
    const bool connecting = phase_of(rank >= 0 ? rank : first_rank(process)) == rendezvous_phase;
    const Failure kind = connecting ? Failure::rendezvous : Failure::training;
    fail({reason.rank >= 0 ? reason.kind : kind, rank, step, connecting ? 0 : end.signal, member.host,
          str(label(process), " ", describe(end),
              connecting  ? " between joining the job and connecting to its peers"
              : step >= 0 ? str(" at step ", step)
              : rank < 0  ? where_ranks_were(process)
                          : " before its first step",
              reason.message.empty() ? "" : ": ", reason.message)});
    return;
  }
  // Its own words may still be on the way over its own connection.
  const milliseconds wait =
      end.code == exit_code::peer_lost ? to_milliseconds(request_.launch.failure_grace) : settling;
  ++undecided_;
  loop_.after(wait, [this, alive = alive_, process, end] {
    if (!*alive) return;
    --undecided_;
    if (!cause_) ended_early(process, end);
  });
}

// Its convoy killed it, since this job fails or because whoever started that convoy is gone: which of them says why may
// take a moment, and until then the job is not over.
void Gang::ended_by_agent(int process, const ProcessEnd& end) {
  members_[static_cast<size_t>(process)].end = end;
  if (cause_ || saved()) return;
  ++undecided_;
  loop_.after(milliseconds(1000), [this, alive = alive_, process] {
    if (!*alive) return;
    --undecided_;
    if (cause_) return;
    const int rank = first_rank(process);
    fail({Failure::rendezvous, rank, step_of(rank), 0, members_[static_cast<size_t>(process)].host,
          str("the convoy of ", label(process), " ended it: what had started that convoy is gone")});
  });
}

bool Gang::stopped_as_asked(const ProcessEnd& end) const { return end.code == exit_code::stopped && stop_signal_ != 0; }

void Gang::ended_early(int process, const ProcessEnd& end) {
  if (stopped_as_asked(end) || (end.ok() && has_results(process))) return;
  Abort reason{failure_of_exit(end.code),
               culprit_of(process),
               step_of(culprit_of(process)),
               0,
               members_[static_cast<size_t>(process)].host,
               ""};
  if (end.ok()) {
    reason.kind = Failure::training;
    reason.message = str(label(process), " ended with 0 before the training was done",
                         culprit_of(process) < 0 ? where_ranks_were(process) : "");
  } else if (end.code == exit_code::peer_lost) {
    reason.kind = Failure::rendezvous;
    reason.message = str(label(process), " lost a peer although none has ended: the network between them failed",
                         lost_ ? ": " + lost_->message : "");
  } else {
    reason.message = str(label(process), " ", describe(end), "; see logs/rank", first_rank(process), ".log");
  }
  fail(told_failure(process).value_or(reason));
}

bool Gang::has_results(int process) const {
  if (!assigned_) return false;
  for (int rank : assigned_->job.processes.at(static_cast<size_t>(process)).ranks)
    if (results_.count(rank) == 0 || (rank == 0 && !result_)) return false;
  return true;
}

bool Gang::complete() const {
  for (size_t i = 0; i < members_.size(); ++i)
    if (!has_results(static_cast<int>(i))) return false;
  return result_.has_value();
}

bool Gang::saved() const { return stop_signal_ != 0 && ranks_stopped_ && complete(); }

// What a rank could still write into its state file.
std::optional<Abort> Gang::told_failure(int process) const {
  if (!assigned_) return std::nullopt;
  for (int rank : assigned_->job.processes.at(static_cast<size_t>(process)).ranks) {
    const auto position = read_state_file(str(assigned_->folder, "/logs/rank", rank, ".state"));
    if (!position || position->failure.empty()) continue;
    const Json json = Json::parse(position->failure, nullptr, false);
    if (json.is_discarded()) continue;
    Abort told = abort_from_json(json);
    if (told.rank < 0) told.rank = culprit_of(process);
    if (told.kind != Failure::peer_lost) return told;
  }
  return std::nullopt;
}

// The server decides which reason was first, and tells it back to `aborted`.
void Gang::fail(const Abort& reason) {
  ++undecided_;
  channel_->abort(reason);
}

void Gang::aborted(Abort reason) {
  if (reason.kind == Failure::peer_lost) {
    if (!lost_) lost_ = reason;
    return;
  }
  if (cause_) return;
  if (saved()) reason = stop_reason();
  // A rank that a message of the wrong size has reached knows its own call only.
  if (reason.kind == Failure::disagreement && assigned_) {
    const StallVerdict difference = stalls_->difference();
    if (reason.message.find("; rank") == std::string::npos && !difference.message.empty())
      reason.message += "; " + difference.message;
  }
  if (reason.step < 0 && reason.rank >= 0) reason.step = step_of(reason.rank);
  if (reason.host.empty()) reason.host = host_of(reason.rank);
  cause_ = reason;
  events_.on_failure(reason);
  // Agents that cannot be reached do not keep the job from ending.
  loop_.after(to_milliseconds(request_.launch.failure_grace) + milliseconds(1000), [this, alive = alive_] {
    if (!*alive || !request_.joins) return;
    for (Member& member : members_)
      if (!member.end) member.end = ProcessEnd{0, SIGKILL};
  });
}

void Gang::stop(int signal) {
  const StopRequests::Kind kind = requests_.received(StopRequests::Clock::now(), signal);
  if (kind == StopRequests::Kind::first) return request_stop(signal);
  if (kind == StopRequests::Kind::again)
    fail({Failure::stopped, -1, -1, 0, "",
          str("asked ", stop_signal_ != 0 ? "twice to stop" : "to stop at once", ": ranks were killed")});
}

void Gang::request_stop(int signal) {
  if (stop_signal_ != 0 || cause_) return;
  stop_signal_ = signal;
  if (!assigned_) return fail({Failure::stopped, -1, -1, 0, "", "asked to stop before the ranks had started"});
  if (events_.on_stop) events_.on_stop(signal);
  channel_->set(protocol::stop_request, "1");
  loop_.after(to_milliseconds(request_.launch.grace), [this, alive = alive_] {
    if (!*alive || cause_ || over()) return;
    // All may be saved already, and what keeps the processes be an MPI_Finalize: an mpirun that was asked to stop itself
    // sleeps between its signals and serves none.
    Abort reason = stop_reason();
    if (!complete()) {
      reason.step = -1;
      reason.message = str("ranks had not stopped ", human_seconds(request_.launch.grace),
                           " (launch.grace) after the request and were killed", where_ranks_were(-1));
    }
    fail(reason);
  });
}

Abort Gang::stop_reason() const {
  const int64_t steps = result_ ? result_->value("steps", int64_t{-1}) : -1;
  return {Failure::stopped, -1, steps, 0, "", stopped_text(stop_signal_, request_.resumes)};
}

bool Gang::joined() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.joined; });
}

bool Gang::over() const {
  if (cause_ && !assigned_) return !request_.joins || agents_left();
  if (undecided_ > 0 && !cause_) return false;
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.end.has_value(); });
}

bool Gang::agents_left() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.left || !member.joined; });
}

GangOutcome Gang::outcome() {
  GangOutcome outcome;
  outcome.cause = cause_;
  outcome.stall = stall_;
  if (result_) outcome.result = *result_;
  for (const auto& [rank, info] : infos_) outcome.ranks[rank] = info;
  for (const auto& [rank, result] : results_) outcome.ranks[rank].update(result);
  const bool stopped = std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.end && member.end->code == exit_code::stopped;
  });
  if (!cause_ && (stopped || saved())) outcome.cause = stop_reason();
  if (!outcome.cause && !complete())
    outcome.cause = Abort{Failure::internal, -1, -1, 0, "", "the ranks ended, and not all had told their results"};
  if (outcome.cause) outcome.exit_code = exit_code_of(*outcome.cause);
  return outcome;
}

void Gang::tell_verdict(int exit_code) {
  try {
    channel_->set(gang_topic::verdict, std::to_string(exit_code));
  } catch (const Error&) {
    // Nobody is left to be told.
  }
}

}  // namespace convoy
