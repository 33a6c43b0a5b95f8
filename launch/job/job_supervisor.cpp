#include "launch/job/job_supervisor.h"

#include <algorithm>

#include <signal.h>
#include <string.h>

#include "core/base/text.h"
#include "core/control/assignment.h"
#include "core/control/exit_codes.h"
#include "core/control/fault.h"
#include "core/files/limits.h"
#include "core/rank_state/position.h"
#include "core/rank_state/state_file.h"
#include "launch/diagnose/stall_report.h"
#include "launch/machine/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Waiting time for an abort or a result that may arrive after the end of its process.
constexpr milliseconds late_report_wait{200};

int number_after(const std::string& key, const char* prefix) { return std::atoi(key.c_str() + strlen(prefix)); }

}  // namespace

JobSupervisor::JobSupervisor(EventLoop& loop, const JobRequest& request, JobEvents events)
    : loop_(loop),
      request_(request),
      events_(std::move(events)),
      tasks_(loop),
      participants_(static_cast<size_t>(request.processes)) {
  CONVOY_CHECK(request_.hosts.size() <= participants_.size(), request_.hosts.size(), " hosts for ",
               participants_.size(), " processes");
  for (size_t process = 0; process < request_.hosts.size(); ++process)
    participants_[process].host = request_.hosts[process];
  ChannelServerOptions options;
  options.interface_address = request_.address;
  options.port = static_cast<uint16_t>(request_.launch.port);
  options.job = request_.job;
  options.heartbeat = to_milliseconds(request_.launch.heartbeat);
  server_ = serve_channel(options, server_events());
  // Without enough descriptors the supervisor cannot accept connections, and ranks wait until their time limit.
  const size_t processes = participants_.size(), own = 2, starting = 7;
  const size_t of_process = request_.joins ? 2 : 3;  // connections of rank and agent, or a connection and two pipes
  require_descriptors(own + starting + of_process * processes, str("supervising ", processes, " rank processes"));
  // A participant number that no agent and no rank has.
  channel_ = connect_channel(server_->address(), -1 - request_.processes, "convoy", rendezvous());
  StallWatch::Events stalls;
  stalls.on_warning = [this](const std::string& text) {
    if (events_.on_notice && !cause_) events_.on_notice(text);
  };
  stalls.on_stall = [this](const StallWatch::Finding& found) { stalled(found); };
  stalls_ = std::make_unique<StallWatch>(loop_, channel_, request_.launch, stalls);
  watch_results();
  if (request_.joins)
    tasks_.after(rendezvous(), [this] {
      if (all_joined_ || cause_) return;
      std::vector<std::string> missing;
      for (size_t i = 0; i < participants_.size(); ++i)
        if (!participants_[i].joined) missing.push_back(std::to_string(i));
      fail({Failure::rendezvous, std::atoi(missing.front().c_str()), -1, 0, "",
            str("missing after ", human_seconds(request_.launch.rendezvous), " (launch.rendezvous): rank ",
                join(missing, ", "), " of ", participants_.size(), "; look for them in the launcher's output")});
    });
}

JobSupervisor::~JobSupervisor() {
  stalls_.reset();
  channel_.reset();
  server_.reset();
}

milliseconds JobSupervisor::rendezvous() const { return to_milliseconds(request_.launch.rendezvous); }

ChannelServerEvents JobSupervisor::server_events() {
  ChannelServerEvents events;
  events.on_post = [this](int, const std::string& topic, const Json& body) {
    tasks_.post([this, topic, body] { posted(topic, body); });
  };
  events.on_leave = [this](int id, const std::string&, bool orderly) {
    tasks_.post([this, id, orderly] { left(id, orderly); });
  };
  events.on_abort = [this](const Abort& reason) { tasks_.post([this, reason] { aborted(reason); }); };
  events.on_stalled = [this](int id, const std::string&, double seconds) {
    tasks_.post([this, id, seconds] { heartbeat_lost(id, seconds); });
  };
  return events;
}

void JobSupervisor::watch_results() {
  auto keep = [this](std::function<void(const std::string&, const Json&)> store) {
    return [this, store](const std::string& key, const std::string& value) {
      tasks_.post([store, key, value] { store(key, Json::parse(value)); });
    };
  };
  channel_->watch(protocol::rank_info, keep([this](const std::string& key, const Json& value) {
                    const int rank = number_after(key, protocol::rank_info);
                    const bool first = infos_.count(rank) == 0;
                    infos_[rank] = value;
                    if (stalls_) stalls_->set_rank_info(rank, value);
                    if (first && events_.on_rank_ready) events_.on_rank_ready(rank);
                  }));
  channel_->watch(protocol::in_loop, keep([this](const std::string& key, const Json&) {
                    in_loop_.insert(number_after(key, protocol::in_loop));
                  }));
  channel_->watch(protocol::result, keep([this](const std::string& key, Json value) {
                    if (key == protocol::result) {
                      ranks_stopped_ = value.value(protocol::stopped_early, false);
                      value.erase(protocol::stopped_early);
                      result_ = value;
                      result_at_ = std::chrono::steady_clock::now();
                    } else {
                      results_[number_after(key, protocol::rank_result)] = value;
                    }
                    // Reports the end now: a launcher with a request to stop soon kills this process too.
                    if (saved() && !cause_ && events_.on_saved) events_.on_saved();
                    if (complete()) await_exits();
                  }));
}

void JobSupervisor::publish(const RankAssignment& assignment) {
  assignment_ = assignment;
  for (size_t i = 0; i < participants_.size() && i < assignment.job.processes.size(); ++i)
    if (participants_[i].host.empty()) participants_[i].host = host_name();
  std::vector<std::string> hosts;
  for (const Participant& participant : participants_) hosts.push_back(participant.host);
  continues_ = assignment.membership > 0;
  stalls_->begin(assignment.job, assignment.folder, hosts);
  channel_->set(protocol::job, to_bytes(assignment));
  await_ranks();
}

// Ranks check the same limit themselves; this covers ranks that cannot report.
void JobSupervisor::await_ranks() {
  tasks_.after(rendezvous() + milliseconds(500), [this, call = ++awaits_] {
    if (call == awaits_) check_ranks_started();
  });
}

void JobSupervisor::check_ranks_started() {
  if (cause_ || retired_ || over()) return;
  std::vector<std::string> missing;
  for (const RankPlan& rank : assignment_->job.ranks)
    if (infos_.count(rank.rank) == 0 && !stalls_->position(rank.rank)) missing.push_back(std::to_string(rank.rank));
  if (missing.empty()) return;
  fail({Failure::rendezvous, std::atoi(missing.front().c_str()), -1, 0, "",
        str("not ready after ", human_seconds(request_.launch.rendezvous), " (launch.rendezvous): rank ",
            join(missing, ", "), "; see logs/rank", missing.front(), ".log")});
}

int JobSupervisor::first_rank(int process) const {
  return assignment_ ? assignment_->job.processes.at(static_cast<size_t>(process)).ranks.front() : process;
}

std::string JobSupervisor::label(int process) const {
  const std::string& host = participants_[static_cast<size_t>(process)].host;
  const std::string where = host.empty() ? "" : str(" on ", host);
  const int rank = failed_rank_of(process);
  if (rank >= 0) return str("rank ", rank, where);
  return str("the process of ranks ", ranks_text(assignment_->job.processes.at(static_cast<size_t>(process)).ranks),
             where);
}

int64_t JobSupervisor::step_of(int rank) const {
  if (!assignment_ || rank < 0) return -1;
  const auto report = stalls_->position(rank);
  return report ? report->position.step : -1;
}

// "; rank 0: saving, step 20; rank 1: …", for the first few ranks of `process`, or of all with -1.
std::string JobSupervisor::positions_text(int process) const {
  constexpr size_t most = 4;
  std::vector<std::string> texts;
  for (size_t rank = 0; assignment_ && rank < assignment_->job.ranks.size() && texts.size() <= most; ++rank) {
    if (process >= 0 && assignment_->job.ranks[rank].process != process) continue;
    const int number = static_cast<int>(rank);
    const std::string phase = phase_of(number);
    const int64_t step = step_of(number);
    if (!phase.empty()) texts.push_back(str("; rank ", number, ": ", phase, step >= 0 ? str(", step ", step) : ""));
  }
  if (texts.size() > most) texts.back() = "; …";
  return join(texts, "");
}

// Returns the rank to name when a process ends: its only rank, or the one whose thread crashed (api/crash.h); before
// the assignment, the first rank of the process. -1: unknown.
int JobSupervisor::failed_rank_of(int process) const {
  if (!assignment_) return first_rank(process);
  const std::vector<int>& ranks = assignment_->job.processes.at(static_cast<size_t>(process)).ranks;
  if (ranks.size() == 1) return ranks.front();
  for (const int rank : ranks)
    if (phase_of(rank) == crashed_phase) return rank;
  return -1;
}

std::string JobSupervisor::phase_of(int rank) const {
  const auto position =
      assignment_ ? read_state_file(str(assignment_->folder, "/logs/rank", rank, ".state")) : std::nullopt;
  return position ? position->phase : "";
}

void JobSupervisor::line(int process, const std::string& text) {
  events_.on_line(first_rank(process), participants_[static_cast<size_t>(process)].host, readable_line(text));
}

void JobSupervisor::add_local_agent(int process, const Host& host) {
  participants_[static_cast<size_t>(process)].left = true;  // its end arrives directly
  add_agent(process, host);
}

void JobSupervisor::add_agent(int process, const Host& host) {
  if (!request_.joins || process < 0 || process >= static_cast<int>(participants_.size())) return;
  Participant& participant = participants_[static_cast<size_t>(process)];
  participant.joined = true;
  participant.topology = host;
  participant.host = host.name;
  if (all_joined_ || !joined()) return;
  all_joined_ = true;
  if (cause_) return;  // the job has ended already and must not start
  std::vector<Host> hosts;
  for (const Participant& one : participants_) hosts.push_back(one.topology);
  if (events_.on_joined) events_.on_joined(hosts);
}

// Ranks that were started separately may have different sizes.
bool JobSupervisor::same_size(const Json& body) {
  const auto here = static_cast<int>(participants_.size());
  const int size = body.at("size").get<int>(), process = body.at("process").get<int>();
  if (size == here) return true;
  const std::string from = body.at("size_from").get<std::string>();
  fail({Failure::config, process, -1, 0, body.at("host").at("name").get<std::string>(),
        str("rank ", process, " was started as one of ", size, from.empty() ? "" : " (" + from + ")",
            ", but the supervisor expects ", counted(here, "rank"), "; start all ranks with the same number")});
  return false;
}

// Ranks train with the supervisor's configuration, so a different file or --set of a rank must not be ignored silently.
bool JobSupervisor::same_config(const Json& body) {
  const Json theirs = body.value("config", Json());
  if (theirs.is_null() || request_.config.is_null()) return true;
  const std::string key = first_difference(request_.config, theirs, {"launch", "log", "profile"});
  if (key.empty()) return true;
  const int process = body.at("process").get<int>();
  fail({Failure::config, process, -1, 0, body.at("host").at("name").get<std::string>(),
        str(key, ": rank ", process,
            " and rank 0 were started with different values; start all ranks with the same "
            "configuration and the same --set")});
  return false;
}

void JobSupervisor::posted(const std::string& topic, const Json& body) {
  if (retired_ && topic != protocol::log_line && topic != injected_topic && topic != job_topic::ended &&
      topic != job_topic::launcher_gone && topic != protocol::signalled)
    return;
  if (topic == job_topic::join) {
    if (same_size(body) && same_config(body)) add_agent(body.at("process").get<int>(), body.at("host").get<Host>());
  } else if (topic == job_topic::ended) {
    const int process = body.at("process").get<int>();
    const ProcessEnd end{body.at("code").get<int>(), body.at("signal").get<int>(), body.value("lack", "")};
    if (events_.on_agent_report && (retired_ || !body.at("made").get<bool>()))
      events_.on_agent_report(process, end);
    else if (!body.at("made").get<bool>())
      ended(process, end);
    else if (process >= 0 && process < static_cast<int>(participants_.size()))
      ended_by_agent(process, end);
  } else if (topic == job_topic::launcher_gone) {
    launcher_gone(body.at("process").get<int>(), body.at("why").get<std::string>());
  } else if (topic == protocol::signalled) {
    if (retired_)
      events_.on_report(topic, body);
    else
      signalled(body);
  } else if (topic == protocol::log_line) {
    events_.on_line(body.at("rank").get<int>(), body.at("host").get<std::string>(),
                    readable_line(body.at("line").get<std::string>()));
  } else if (topic == protocol::first_step) {
    events_.on_first_step();
  } else if (retired_ || !stalls_->posted(topic, body)) {
    events_.on_report(topic, body);
  }
}

void JobSupervisor::left(int id, bool orderly) {
  const int process = -1 - id;
  if (id >= 0 || process >= static_cast<int>(participants_.size())) return;
  Participant& participant = participants_[static_cast<size_t>(process)];
  participant.left = true;
  if (participant.end || (!orderly && lost_after_results(process))) return;
  if (!cause_ && !saved() && stop_signal_ == 0 && events_.on_unreachable &&
      events_.on_unreachable(process, true, ": its convoy left the control channel: it was killed, or its host is lost",
                             Failure::rendezvous))
    return;
  if (retired_) return;
  participant.end = ProcessEnd{0, SIGKILL};
  if (cause_ || saved()) return;
  if (stop_signal_ != 0) return fail(unsaved_stop(process, str("the convoy of ", label(process), " was killed")));
  fail({Failure::internal, first_rank(process), step_of(first_rank(process)), SIGKILL, participant.host,
        str("the convoy of ", label(process), " left the control channel ",
            orderly ? "before its rank ended" : "without notice", ": it was killed, or its host is lost")});
}

void JobSupervisor::heartbeat_lost(int id, double seconds) {
  if (cause_) return;
  const int rank = id >= 0 ? id : -1 - id;
  const size_t known = id >= 0 && assignment_ ? assignment_->job.ranks.size() : participants_.size();
  if (rank >= static_cast<int>(known)) return;
  const std::string how = str(" has sent no heartbeat for ", human_seconds(seconds), " (launch.heartbeat)");
  if (retired_) {
    // The participant is a rank that should leave this membership, or the convoy of a host.
    if (events_.on_unreachable)
      events_.on_unreachable(id >= 0 ? started_.at(static_cast<size_t>(rank)) : rank, true, how, Failure::hang);
    return;
  }
  const std::string who = str(id >= 0 ? "rank " : "the convoy of rank ", rank);
  if (assignment_) {
    const int process = id >= 0 ? assignment_->job.ranks[static_cast<size_t>(rank)].process : rank;
    if (id < 0 && lost_after_results(process)) return;
    if (only_exits()) {
      // The channel of a later membership has no agents, so nothing else shows here that another host is lost: its
      // process counts as ended. For other processes await_exits limits the wait.
      if (continues_ && host_of(rank) != host_name()) participants_[static_cast<size_t>(process)].end = ProcessEnd{};
      return;
    }
    if (events_.on_unreachable && events_.on_unreachable(process, id < 0, how, Failure::hang)) return;
    if (stop_signal_ != 0) return fail(unsaved_stop(process, who + how));
  }
  stalls_->heartbeat_lost(rank, seconds, who + how);
}

// Ends the job with the diagnosis: the rank that waited longest need not be the stalled one.
void JobSupervisor::stalled(const StallWatch::Finding& found) {
  if (cause_ || over()) return;
  stall_ = found.json;
  if (events_.on_notice) events_.on_notice(found.table);
  const int rank = found.diagnosis.ranks.empty() ? -1 : found.diagnosis.ranks.front();
  fail({found.diagnosis.kind, rank, found.step, 0, host_of(rank), found.diagnosis.message});
}

std::string JobSupervisor::host_of(int rank) const {
  if (!assignment_ || rank < 0 || rank >= static_cast<int>(assignment_->job.ranks.size())) return "";
  return participants_[static_cast<size_t>(assignment_->job.ranks[static_cast<size_t>(rank)].process)].host;
}

void JobSupervisor::ended(int process, const ProcessEnd& end) {
  if (process < 0 || process >= static_cast<int>(participants_.size())) return;
  Participant& participant = participants_[static_cast<size_t>(process)];
  if (participant.end) return;
  participant.end = end;
  if (cause_ || saved()) return;
  if ((end.ok() || stopped_as_asked(end)) && has_results(process)) return;
  if (!end.lack.empty() && end.code != exit_code::out_of_memory && !reported_failure(process)) {
    const int rank = failed_rank_of(process);
    return fail({Failure::out_of_memory, rank, step_of(rank), end.signal, participant.host,
                 str(label(process), " ", end_text(end), ": ", end.lack)});
  }
  if (end.signal == SIGABRT && assignment_) {
    // A library that cannot handle messages of unequal sizes aborts its process.
    if (const StallDiagnosis mismatch = stalls_->mismatch(); !mismatch.message.empty()) {
      const int rank = mismatch.ranks.empty() ? -1 : mismatch.ranks.front();
      return fail({mismatch.kind, rank, step_of(first_rank(process)), 0, host_of(rank), mismatch.message});
    }
  }
  if (end.signal != 0) {
    Abort reason = reported_failure(process).value_or(Abort{});
    const int rank = reason.rank >= 0 ? reason.rank : failed_rank_of(process);
    const int64_t step = step_of(rank);
    const bool connecting = phase_of(rank >= 0 ? rank : first_rank(process)) == rendezvous_phase;
    const Failure kind = connecting ? Failure::rendezvous : Failure::training;
    fail({reason.rank >= 0 ? reason.kind : kind, rank, step, connecting ? 0 : end.signal, participant.host,
          str(label(process), " ", end_text(end),
              connecting   ? " between joining the job and connecting to its peers"
              : step >= 0  ? str(" at step ", step)
              : continues_ ? str(" while the ranks of membership ", assignment_->membership + 1, " connected")
              : rank < 0   ? positions_text(process)
                           : " before its first step",
              reason.message.empty() ? "" : ": ", reason.message)});
    return;
  }
  // The rank's own message may still arrive over its own connection.
  const milliseconds wait =
      end.code == exit_code::peer_lost ? to_milliseconds(request_.launch.failure_grace) : late_report_wait;
  ++undecided_;
  tasks_.after(wait, [this, process, end] {
    --undecided_;
    if (!cause_) ended_early(process, end);
  });
}

// Waits for the cause: the agent killed its process because the job failed, or because the process that started the
// agent has ended. Either reason may take a moment to arrive, and until then the job is not over.
void JobSupervisor::ended_by_agent(int process, const ProcessEnd& end) {
  participants_[static_cast<size_t>(process)].end = end;
  if (cause_ || saved()) return;
  ++undecided_;
  tasks_.after(milliseconds(1000), [this, process] {
    --undecided_;
    if (cause_ || only_exits()) return;
    fail_launcher(process, str("the convoy of ", label(process),
                               " ended it, because the process that started that convoy has ended"));
  });
}

bool JobSupervisor::stopped_as_asked(const ProcessEnd& end) const {
  return end.code == exit_code::stopped && stop_signal_ != 0;
}

void JobSupervisor::ended_early(int process, const ProcessEnd& end) {
  if (stopped_as_asked(end) || (end.ok() && has_results(process))) return;
  if (end.code == exit_code::peer_lost && only_exits()) return;  // no rank needs another one any more
  const int rank = failed_rank_of(process);
  const std::string& host = participants_[static_cast<size_t>(process)].host;
  Abort reason{failure_of_exit(end.code), rank, step_of(rank), 0, host, ""};
  if (end.ok()) {
    reason.kind = Failure::training;
    reason.message =
        str(label(process), " ended with 0 before the training was done", rank < 0 ? positions_text(process) : "");
    if (rank >= 0 && infos_.count(rank) == 0 && !stalls_->position(rank))
      reason.message += "; it has not joined the job: main() of a program has to create a convoy::Job(argc, argv)";
  } else if (end.code == exit_code::peer_lost) {
    reason.kind = Failure::rendezvous;
    reason.message = str(label(process), " lost a peer although none has ended: the network between them failed",
                         lost_ ? ": " + lost_->message : "");
  } else {
    reason.message = str(label(process), " ", end_text(end),
                         end.lack.empty() ? str("; see logs/rank", first_rank(process), ".log") : ": " + end.lack);
    if (end.code == exit_code::not_found) {  // the dynamic linker's code, too
      reason.kind = Failure::config;
      reason.message += "; if it did not find LibTorch: Torch_DIR=/path/to/libtorch convoy …";
    }
  }
  fail(reported_failure(process).value_or(reason));
}

bool JobSupervisor::has_results(int process) const {
  if (!assignment_) return false;
  for (int rank : assignment_->job.processes.at(static_cast<size_t>(process)).ranks)
    if (results_.count(rank) == 0 || (rank == 0 && !result_)) return false;
  return true;
}

bool JobSupervisor::complete() const {
  return assignment_ && result_ && results_.size() == assignment_->job.ranks.size();
}

bool JobSupervisor::saved() const { return stop_signal_ != 0 && complete() && (ranks_stopped_ || limits_exits()); }

// The failure that a rank wrote into its state file before its end.
std::optional<Abort> JobSupervisor::reported_failure(int process) const {
  if (!assignment_) return std::nullopt;
  for (int rank : assignment_->job.processes.at(static_cast<size_t>(process)).ranks) {
    const auto position = read_state_file(str(assignment_->folder, "/logs/rank", rank, ".state"));
    if (!position || position->failure.empty()) continue;
    const Json json = Json::parse(position->failure, nullptr, false);
    if (json.is_discarded()) continue;
    Abort reported = abort_from_json(json);
    if (reported.rank < 0) reported.rank = failed_rank_of(process);
    if (reported.kind != Failure::peer_lost) return reported;
  }
  return std::nullopt;
}

// Aborts through the server, which decides which reason is the first and passes it to `aborted`.
void JobSupervisor::fail(const Abort& reason) {
  ++undecided_;
  channel_->abort(reason);
}

void JobSupervisor::aborted(Abort reason) {
  if (retired_) return;
  if (reason.kind == Failure::peer_lost) {
    if (!lost_) lost_ = reason;
    return;
  }
  if (cause_) return;
  if (saved()) reason = stop_reason();
  // A rank that received a message of the wrong size knows only its own collective.
  if (reason.kind == Failure::disagreement && assignment_) {
    const StallDiagnosis mismatch = stalls_->mismatch();
    if (reason.message.find("; rank") == std::string::npos && !mismatch.message.empty())
      reason.message += "; " + mismatch.message;
  }
  if (reason.step < 0 && reason.rank >= 0) reason.step = step_of(reason.rank);
  if (reason.host.empty()) reason.host = host_of(reason.rank);
  cause_ = reason;
  events_.on_failure(reason);
  // Agents that cannot be reached must not delay the end of the job.
  tasks_.after(to_milliseconds(request_.launch.failure_grace) + milliseconds(1000), [this] {
    if (!request_.joins && !request_.has_agents) return;
    for (Participant& participant : participants_)
      if (!participant.end) participant.end = ProcessEnd{0, SIGKILL};
  });
}

void JobSupervisor::stop(int signal) {
  const StopRequests::Kind kind = requests_.received(StopRequests::Clock::now(), signal);
  if (kind != StopRequests::Kind::echo || cause_) request_stop(signal, kind == StopRequests::Kind::again);
}

void JobSupervisor::signalled(const Json& body) {
  request_stop(body.at("signal").get<int>(), body.value("at_once", false));
}

void JobSupervisor::request_stop(int signal, bool at_once) {
  if (cause_) return loop_.keep_signal(signal);  // ends the pause before the next attempt
  if (at_once)
    return fail({Failure::stopped, -1, -1, 0, "",
                 str("stop requested ", stop_signal_ != 0 ? "twice" : "at once", ": ranks were killed")});
  if (stop_signal_ != 0) return;
  stop_signal_ = signal;
  if (!assignment_) return fail({Failure::stopped, -1, -1, 0, "", "asked to stop before the ranks had started"});
  if (request_.stops_at_once)
    return fail(
        {Failure::stopped, -1, -1, 0, "", str("stopped by SIG", sigabbrev_np(signal), "; no result was written")});
  if (events_.on_stop) events_.on_stop(signal);
  if (!saved())
    channel_->set(protocol::stop_request, "1");
  else if (events_.on_saved)
    events_.on_saved();
  tasks_.after(to_milliseconds(request_.launch.grace), [this] {
    if (cause_ || over()) return;
    // All ranks may have saved while an MPI_Finalize keeps the processes: after a request to stop, mpirun sleeps
    // between its signals and serves no process.
    Abort reason = stop_reason();
    if (!complete()) {
      reason.step = -1;
      reason.message = str("ranks had not stopped ", human_seconds(request_.launch.grace),
                           " (launch.grace) after the request and were killed", positions_text(-1));
    }
    fail(reason);
  });
}

Abort JobSupervisor::stop_reason() const {
  const int64_t steps = result_ ? result_->value("steps", int64_t{-1}) : -1;
  Abort reason{Failure::stopped, -1, steps, 0, "", ""};
  const std::string what = complete() && !ranks_stopped_ ? " after all results, which are complete"
                           : request_.resumes            ? "; the same command resumes from the checkpoint"
                                                         : "; the same command starts from the beginning";
  reason.message = str("stopped by ", stop_signal_ != 0 ? str("SIG", sigabbrev_np(stop_signal_)) : "request", what);
  return reason;
}

bool JobSupervisor::joined() const {
  return std::all_of(participants_.begin(), participants_.end(),
                     [](const Participant& participant) { return participant.joined; });
}

bool JobSupervisor::over() const {
  if (cause_ && !assignment_) return true;  // no process has started
  if (undecided_ > 0 && !cause_) return false;
  return std::all_of(participants_.begin(), participants_.end(),
                     [](const Participant& participant) { return participant.end.has_value(); });
}

bool JobSupervisor::agents_gone() const {
  return std::all_of(participants_.begin(), participants_.end(),
                     [](const Participant& participant) { return participant.left || !participant.joined; });
}

JobOutcome JobSupervisor::outcome() {
  JobOutcome outcome;
  outcome.cause = cause_;
  outcome.stall = stall_;
  if (result_) {
    outcome.result = *result_;
    outcome.after_seconds = seconds_since(result_at_);
  }
  for (const auto& [rank, info] : infos_) outcome.ranks[rank] = info;
  for (const auto& [rank, result] : results_) outcome.ranks[rank].update(result);
  const bool stopped = std::any_of(participants_.begin(), participants_.end(), [](const Participant& participant) {
    return participant.end && participant.end->code == exit_code::stopped;
  });
  if (saved() && !stopped && !ranks_stopped_)
    outcome.cause.reset();  // all ranks had trained to the end before the request
  else if (!cause_ && (stopped || saved()))
    outcome.cause = stop_reason();
  if (!outcome.cause && complete() && result_->value(protocol::paused, false)) {
    const int64_t steps = result_->value("steps", int64_t{-1});
    outcome.cause = Abort{Failure::stopped,
                          -1,
                          steps,
                          0,
                          "",
                          str("paused after step ", steps,
                              " (train.pause_after); the same command with a later point, or with "
                              "--set train.pause_after=never, resumes")};
  }
  if (!outcome.cause && !complete())
    outcome.cause = Abort{Failure::internal, -1, -1, 0, "", "the ranks ended without reporting all results"};
  if (outcome.cause) outcome.exit_code = exit_code_of(*outcome.cause);
  return outcome;
}

}  // namespace convoy
