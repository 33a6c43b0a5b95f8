// `convoy` as an agent: the parent of one rank under another launcher or inside an mpirun that `convoy` started, or of
// all ranks of a host.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <map>

#include "core/base/log.h"
#include "core/base/version.h"
#include "core/control/assignment.h"
#include "core/control/channel.h"
#include "core/control/exit_codes.h"
#include "core/rank_state/state_file.h"
#include "launch/job/agent.h"
#include "launch/job/job_supervisor.h"
#include "launch/job/rendezvous.h"
#include "launch/job/run_modes.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"
#include "launch/prepare/run_folder.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Makes the run folder: hosts without shared storage each have logs and state files.
void make_folder(const std::string& folder, const std::string& host) {
  refuse_writable_by_others(folder);
  try {
    make_private_folder(folder);
    make_private_folder(folder + "/logs");
  } catch (const Error& error) {
    throw Error(Failure::output, folder, ": cannot be created on ", host, ": ", error.what(),
                "; give another --output");
  }
  refuse_writable_by_others(folder);
  refuse_link(folder + "/logs");
}

// Calls `gone` once: at the end of the input, whose other end is gone then.
void at_end_of_input(EventLoop& loop, int input, const std::function<void()>& gone) {
  loop.on_readable(input, [&loop, input, gone] {
    char bytes[256];
    const ssize_t got = read(input, bytes, sizeof bytes);
    if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) return;
    loop.forget(input);
    gone();
  });
}

class RankAgent : public SupervisedAgent {
 public:
  RankAgent(EventLoop& loop, const AgentRequest& request, const Host& host)
      : SupervisedAgent(loop, host,
                        {request.as, request.requested_folder, request.rendezvous, str("rank ", request.as.rank)}),
        request_(request),
        processes_(request.processes.empty() ? std::vector<int>{request.as.rank} : request.processes),
        agent_(loop, {[this](int process, const std::string& line) { post_line(process, line); },
                      [this](int process, const ProcessEnd& end) { child_ended(process, end); }}) {
    if (request_.input >= 0) at_end_of_input(loop_, request_.input, [this] { launcher_gone(); });
  }

 private:
  std::shared_ptr<Channel> connect(const ChannelAddress& address) override {
    std::map<int, std::shared_ptr<Channel>> channels;
    for (int process : processes_)
      channels[process] = connect_channel(address, -1 - process, str("convoy of rank ", process), milliseconds(500));
    channels_ = std::move(channels);
    return channels_.begin()->second;
  }

  void join() override {
    channel_->on_abort([this](const Abort& reason) { tasks_.post([this, reason] { aborted(reason); }); });
    channel_->watch(protocol::job, [this](const std::string&, const std::string& value) {
      tasks_.post([this, value] { start(rank_assignment_from_bytes(value)); });
    });
    for (const auto& [process, channel] : channels_)
      channel->post(job_topic::join, {{"process", process},
                                      {"host", host_},
                                      {"size", request_.as.size},
                                      {"size_from", request_.as.size_from},
                                      {"config", request_.config}});
  }

  void job_ended(int code) override { code_ = code; }
  bool idle() const override { return agent_.idle(); }

  void start(const RankAssignment& assignment) {
    if (assignment_ || ending_) return;
    assignment_ = assignment;
    grace_ = to_milliseconds(assignment.job.config.launch.failure_grace);
    size_t next = 0;
    try {
      make_folder(assignment.folder, host_.name);
      for (; next < processes_.size(); ++next)
        agent_.start(processes_[next],
                     rank_process(request_.rank_program, assignment, processes_[next], address_, request_.variables));
    } catch (const Error& error) {
      channel_->abort({error.kind(), processes_[next], -1, 0, host_.name, error.what()});
      for (; next < processes_.size(); ++next) child_ended(processes_[next], {exit_code_of(error.kind()), 0});
    }
  }

  void post_line(int process, const std::string& line) {
    // `rank` is the first rank of the process. A line of a process with several ranks names its rank itself.
    const int rank = assignment_->job.processes.at(static_cast<size_t>(process)).ranks.front();
    channels_.at(process)->post(protocol::log_line, {{"rank", rank}, {"host", host_.name}, {"line", line}});
  }

  void child_ended(int process, const ProcessEnd& end) {
    if (!first_end_ || first_end_->ok()) first_end_ = end;
    // SIGKILL by this agent is no information about the rank.
    const bool made = ending_ && end.signal == SIGKILL;
    channels_.at(process)->post(
        job_topic::ended,
        {{"process", process}, {"code", end.code}, {"signal", end.signal}, {"lack", end.lack}, {"made", made}});
  }

  // Kills the rank after the grace period; it receives the abort itself and may end in order.
  void aborted(const Abort& reason) {
    if (reason.kind == Failure::peer_lost) return;
    if (ending_) return;
    ending_ = fails_ = true;
    const milliseconds grace = reason.kind == Failure::stopped ? milliseconds(0) : grace_;
    agent_.kill_after(grace);
    end_after(grace, exit_code_of(reason));
  }

  // Usually the supervisor sends the job's exit code before that, because it sees the end of the ranks.
  void end_after(milliseconds grace, int code) {
    tasks_.after(grace + milliseconds(3000), [this, code] {
      if (!code_) code_ = code;
    });
  }

  void signalled(int signal) override {
    if (!channel_) {
      agent_.kill_all();
      if (!code_) code_ = exit_code::stopped;
      return;
    }
    // The mpirun that convoy started sends SIGTERM to all agents after a failure, which is no request to stop.
    if (signal == SIGTERM && request_.as.launcher == Launcher::open_mpi && !request_.as.channel.empty()) return;
    const StopRequests::Kind kind = requests_.received(StopRequests::Clock::now(), signal);
    if (kind == StopRequests::Kind::echo) return;
    const bool at_once = kind == StopRequests::Kind::again;
    // Without ranks, only this process was asked to stop. The supervisor may restart a job that fails.
    if (!ending_ || fails_) channel_->post(protocol::signalled, {{"signal", signal}, {"at_once", at_once}});
    if (!at_once) return;
    ending_ = true;
    agent_.kill_all();
    end_after(milliseconds(0), exit_code::stopped);
  }

  // Ends the ranks after mpirun, srun or the remote shell was killed. The supervisor usually knows the reason better.
  void launcher_gone() override {
    ending_ = true;
    const std::string why = str(request_.input >= 0 ? "the remote shell" : name_of(request_.as.launcher),
                                ", which started rank ", processes_.front(), " on ", host_.name, ", is gone");
    // The supervisor decides whether the job continues without these ranks, or is complete.
    for (const auto& [process, channel] : channels_)
      channel->post(job_topic::launcher_gone, {{"process", process}, {"why", why}});
    agent_.kill_all();
    // With a channel this process stays until the job ends or the supervisor is gone too, which it then records.
    if (!channel_) code_ = exit_code::rendezvous;
  }

  void supervisor_gone() override {
    if (code_) return;
    ending_ = true;
    agent_.kill_all();
    const bool failed = first_end_ && !first_end_->ok() && first_end_->code != exit_code::peer_lost;
    code_ = failed ? first_end_->exit_code() : exit_code::rendezvous;
    const std::string why = str("the supervisor at ", channel_address(address_).host, " is gone or cannot be reached");
    if (!assignment_) {
      log::error(str(here(), ": ", why));
      return;
    }
    if (!request_.requested_folder.empty()) remove_rendezvous(request_.requested_folder, request_.as.job);
    const auto position = read_state_file(str(assignment_->folder, "/logs/rank", request_.as.rank, ".state"));
    record_failure(assignment_->folder, {Failure::rendezvous, 0, position ? position->step : -1, 0, "",
                                         str(why, "; ", here(), " noticed it")});
  }

  const AgentRequest& request_;
  const std::vector<int> processes_;
  std::map<int, std::shared_ptr<Channel>> channels_;  // one per process, so that each leaves separately
  std::optional<RankAssignment> assignment_;
  std::optional<ProcessEnd> first_end_;
  milliseconds grace_{2000};
  bool ending_ = false;
  bool fails_ = false;  // the job has failed
  StopRequests requests_;
  Agent agent_;
};

// Lines of standard input, read in the event loop: the starter may be killed before it writes them.
class InputLines {
 public:
  explicit InputLines(EventLoop& loop) : loop_(loop) {}

  // The next line; nothing at the end of the input.
  std::optional<std::string> next() {
    bool stopped = false;
    loop_.on_signal([&](int) { stopped = true; });
    loop_.on_readable(STDIN_FILENO, [this] { read_some(); });
    loop_.run_until([&] { return ended_ || stopped || text_.find('\n') != std::string::npos; });
    loop_.forget(STDIN_FILENO);
    const size_t end = text_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    const std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }

 private:
  void read_some() {
    char bytes[4096];
    const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
    if (got > 0) text_.append(bytes, static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) ended_ = true;
  }

  EventLoop& loop_;
  std::string text_;
  bool ended_ = false;
};

// Runs one rank that joins a running job. Its lines and its exit code are those of this process, so that the supervisor
// needs no further agent on its channel. The rank ends with the standard input.
int run_joining_rank(EventLoop& loop, const AgentRequest& request, const RemotePlan& plan, const Host& host) {
  const RankAssignment assignment = rank_assignment_from_json(plan.assignment);
  std::optional<ProcessEnd> end;
  Agent agent(loop, {[](int, const std::string& line) {
                       fputs((line + "\n").c_str(), stdout);
                       fflush(stdout);
                     },
                     [&](int, const ProcessEnd& its) { end = its; }});
  loop.on_signal([&](int) { agent.kill_all(); });
  at_end_of_input(loop, request.input, [&] { agent.kill_all(); });
  make_folder(assignment.folder, host.name);
  const int process = plan.processes.at(0);
  agent.start(process, rank_process(request.rank_program, assignment, process, plan.channel, request.variables));
  loop.run_until([&] { return end.has_value(); });
  return end->exit_code();
}

// Returns why ranks cannot start here, or "".
std::string problem_with(const RemoteRequest& request) {
  if (request.version != version)
    return str(program_path(), " is version ", version, " there and ", request.version,
               " here; install one build on all hosts");
  if (chdir(request.folder.c_str()) != 0)
    return str("cannot work in ", request.folder, " there: ", strerror(errno),
               "; it needs the folder in which `convoy run` was typed, shared or under the same path");
  return "";
}

}  // namespace

int run_as_agent(EventLoop& loop, const AgentRequest& request, const Host& host) {
  return RankAgent(loop, request, host).run();
}

// --- `convoy agent`: the remote end of `convoy run --hosts`, started by a remote shell ---
//
// It sends its host, receives the ranks to start and the address of the control channel, and then works like any other
// agent: its ranks end when the channel is lost, when the remote shell is gone, or when the job is done.

int run_agent_for_host(EventLoop& loop) {
  InputLines input(loop);
  const std::optional<std::string> first = input.next();
  if (!first)
    throw Error(Failure::command_line, "convoy agent: `convoy run --hosts` starts it on other hosts; do not type it");
  const RemoteRequest request = remote_request(*first);
  RemoteHello hello;
  hello.version = version;
  hello.problem = problem_with(request);
  AgentRequest agent;
  if (hello.problem.empty()) try {
      if (request.program.empty())
        agent.rank_program = rank_program();
      else
        executable_path(request.program, program_advice);
      hello.host = this_host({request.gpus, false});
      hello.interfaces = interfaces_here();
    } catch (const Error& error) {
      hello.problem = error.what();
    }
  fputs(to_line(hello).c_str(), stdout);
  fflush(stdout);
  if (!hello.problem.empty()) return exit_code::rendezvous;
  const std::optional<std::string> second = input.next();
  if (!second) return exit_code::rendezvous;  // the supervisor found an error and has reported it
  const RemotePlan plan = remote_plan(*second);
  agent.as.launcher = Launcher::convoy;
  agent.as.rank = plan.processes.at(0);
  agent.as.size = plan.size;
  agent.as.channel = plan.channel;
  agent.processes = plan.processes;
  agent.input = STDIN_FILENO;
  agent.variables = without_ranks(current_variables());
  for (const auto& [name, value] : request.environment) agent.variables[name] = value;
  return plan.assignment.is_null() ? run_as_agent(loop, agent, hello.host)
                                   : run_joining_rank(loop, agent, plan, hello.host);
}

}  // namespace convoy
