// A `convoy` that serves nothing: the parent of one rank under another launcher or inside an mpirun that `convoy` started,
// or of all ranks of a host.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/control/protocol.h"
#include "core/control/state_file.h"
#include "core/log.h"
#include "launch/agent.h"
#include "launch/exit_codes.h"
#include "launch/networks.h"
#include "launch/parent_watch.h"
#include "launch/rendezvous.h"
#include "launch/run_folder.h"
#include "launch/run_modes.h"
#include "launch/session.h"
#include "launch/stop_requests.h"
#include "launch/summary.h"
#include "launch/topology.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

class RemoteAgent {
 public:
  RemoteAgent(EventLoop& loop, const AgentRequest& request, const Host& host)
      : loop_(loop),
        request_(request),
        host_(host),
        processes_(request.processes.empty() ? std::vector<int>{request.as.rank} : request.processes),
        agent_(loop, {[this](int process, const std::string& line) { post_line(process, line); },
                      [this](int process, const ProcessEnd& end) { child_ended(process, end); }}) {}
  ~RemoteAgent() {
    *alive_ = false;
    channels_.clear();
  }
  RemoteAgent(const RemoteAgent&) = delete;
  RemoteAgent& operator=(const RemoteAgent&) = delete;

  int run() {
    loop_.on_signal([this](int signal) { signalled(signal); });
    if (stays_as_parent(request_.as.launcher))
      parent_ = std::make_unique<ParentWatch>(loop_, [this] { launcher_gone(); });
    if (request_.input >= 0) loop_.on_readable(request_.input, [this] { read_input(); });
    look_for_server();
    loop_.run_until([this] { return code_.has_value() && agent_.idle(); });
    return *code_;
  }

 private:
  // Tries again and again until R has passed: the file may not be there yet, or be that of a job that was killed.
  void look_for_server() {
    if (code_) return;
    std::string problem = str("no ", request_.requested_folder, "/.rendezvous-", request_.as.job,
                              " appeared; do all ranks share the folder of --output?");
    try {
      const auto address = request_.as.channel.empty() ? read_rendezvous(request_.requested_folder, request_.as.job)
                                                       : channel_address(request_.as.channel);
      if (address) {
        problem =
            str("the convoy that serves does not answer on ", address->host, " port ", address->port, "; ", host_.name,
                " has ", shown(interfaces_here()), "; launch.address names another address or network");
        std::map<int, std::shared_ptr<Channel>> channels;
        for (int process : processes_)
          channels[process] =
              connect_channel(*address, -1 - process, str("convoy of rank ", process), milliseconds(500));
        return join(std::move(channels), to_string(*address));
      }
    } catch (const CommError& error) {
      problem = error.what();  // not yet, no longer, or another job's
    } catch (const Error& error) {
      if (error.kind() != Failure::rendezvous) throw;
      problem = error.what();
    }
    if (seconds_since(started_) > request_.rendezvous) {
      log::error(str("rank ", request_.as.rank, " on ", host_.name, ": after ", human_seconds(request_.rendezvous),
                     " (launch.rendezvous): ", problem));
      code_ = exit_code::rendezvous;
      return;
    }
    loop_.after(milliseconds(seconds_since(started_) < 5 ? 10 : 100), [this] { look_for_server(); });
  }

  void join(std::map<int, std::shared_ptr<Channel>> channels, const std::string& address) {
    channels_ = std::move(channels);
    channel_ = channels_.begin()->second;
    address_ = address;
    auto later = [this](std::function<void()> task) {
      loop_.post([alive = alive_, task = std::move(task)] {
        if (*alive) task();
      });
    };
    channel_->on_abort([this, later](const Abort& reason) { later([this, reason] { aborted(reason); }); });
    channel_->on_lost([this, later] { later([this] { server_gone(); }); });
    channel_->watch(protocol::job, [this, later](const std::string&, const std::string& value) {
      later([this, value] { start(assigned_from_json(Json::parse(value))); });
    });
    channel_->watch(gang_topic::verdict, [this, later](const std::string&, const std::string& value) {
      later([this, value] { code_ = std::atoi(value.c_str()); });
    });
    for (const auto& [process, own] : channels_)
      own->post(gang_topic::join, {{"process", process},
                                   {"host", to_json(host_)},
                                   {"size", request_.as.size},
                                   {"size_from", request_.as.size_from},
                                   {"config", request_.config}});
  }

  void start(const Assigned& assigned) {
    if (assigned_ || ending_) return;
    assigned_ = assigned;
    const LaunchConfig launch = RunConfig::from_resolved(assigned.job.config).launch;
    grace_ = milliseconds(static_cast<int64_t>(launch.failure_grace * 1000));
    size_t next = 0;
    try {
      make_folder(assigned.folder);
      for (; next < processes_.size(); ++next)
        agent_.start(processes_[next],
                     rank_process(request_.rank_program, assigned, processes_[next], address_, request_.variables));
    } catch (const Error& error) {
      channel_->abort({error.kind(), processes_[next], -1, 0, host_.name, error.what()});
      for (; next < processes_.size(); ++next) child_ended(processes_[next], {exit_code_of(error.kind()), 0});
    }
  }

  // Where hosts share no storage each has logs and state files of its own.
  void make_folder(const std::string& folder) const {
    try {
      make_private_folder(folder);
      make_private_folder(folder + "/logs");
    } catch (const Error& error) {
      throw Error(Failure::output,
                  str(folder, ": cannot be made on ", host_.name, ": ", error.what(), "; give another --output"));
    }
    refuse_writable_by_others(folder);
  }

  const std::shared_ptr<Channel>& channel_of(int process) const { return channels_.at(process); }

  void post_line(int process, const std::string& line) {
    // A process of several ranks tells which of them in its lines; its first one stands for it.
    const int rank = assigned_->job.processes.at(static_cast<size_t>(process)).ranks.front();
    channel_of(process)->post(protocol::log_line, {{"rank", rank}, {"host", host_.name}, {"line", line}});
  }

  void child_ended(int process, const ProcessEnd& end) {
    if (!first_end_ || first_end_->ok()) first_end_ = end;
    // An end that this process made says nothing about the rank.
    const bool made = ending_ && end.signal == SIGKILL;
    channel_of(process)->post(
        gang_topic::ended,
        {{"process", process}, {"code", end.code}, {"signal", end.signal}, {"lack", end.lack}, {"made", made}});
  }

  // The rank hears of it itself and may end in order; this sees to it that it ends.
  void aborted(const Abort& reason) {
    if (reason.kind == Failure::peer_lost || ending_) return;
    ending_ = true;
    const milliseconds grace = reason.kind == Failure::stopped ? milliseconds(0) : grace_;
    agent_.kill_after(grace);
    loop_.after(grace + milliseconds(3000), [this, alive = alive_, reason] {
      if (*alive && !code_) code_ = exit_code_of(reason);
    });
  }

  void signalled(int signal) {
    const StopRequests::Kind kind = requests_.received(StopRequests::Clock::now(), signal);
    if (channel_ && kind == StopRequests::Kind::echo) return;
    if (!channel_ || kind == StopRequests::Kind::again) {
      agent_.kill_all();
      if (!code_) code_ = exit_code::stopped;
      return;
    }
    channel_->post(gang_topic::signalled, {{"signal", signal}});
  }

  void read_input() {
    char bytes[256];
    const ssize_t got = read(request_.input, bytes, sizeof bytes);
    if (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN))) return;
    loop_.forget(request_.input);
    launcher_gone();
  }

  // mpirun, srun or the remote shell was killed: ranks must not outlive it. The one who serves usually knows the reason
  // better.
  void launcher_gone() {
    ending_ = true;
    agent_.kill_all();
    if (!channel_) code_ = exit_code::rendezvous;
    if (code_) return;
    loop_.after(milliseconds(300), [this, alive = alive_] {
      if (!*alive || code_) return;
      Abort cause{Failure::rendezvous,
                  -1,
                  -1,
                  0,
                  host_.name,
                  str(request_.input >= 0 ? "the remote shell" : name_of(request_.as.launcher), ", which started rank ",
                      processes_.front(), ", is gone")};
      channel_->abort(cause);
      code_ = exit_code::rendezvous;
      if (!assigned_ || request_.input < 0) return;
      // The host that serves may be gone, too, and then nobody else is left to say so.
      cause.host.clear();
      cause.message += str("; so may be the convoy that served at ", channel_address(address_).host);
      leave_failure(assigned_->folder, cause);
    });
  }

  void server_gone() {
    if (code_) return;
    ending_ = true;
    agent_.kill_all();
    const bool failed = first_end_ && !first_end_->ok() && first_end_->code != exit_code::peer_lost;
    code_ = failed ? first_end_->exit_code() : exit_code::rendezvous;
    const std::string why = "the convoy that served the control channel is gone, or cannot be reached any more";
    if (!assigned_) {
      log::error(str("rank ", request_.as.rank, " on ", host_.name, ": ", why));
      return;
    }
    if (!request_.requested_folder.empty()) remove_rendezvous(request_.requested_folder, request_.as.job);
    const auto position = read_state_file(str(assigned_->folder, "/logs/rank", request_.as.rank, ".state"));
    leave_failure(assigned_->folder, {Failure::rendezvous, 0, position ? position->step : -1, 0, "",
                                      str(why, "; rank ", request_.as.rank, " on ", host_.name, " noticed it")});
  }

  EventLoop& loop_;
  const AgentRequest& request_;
  const Host& host_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::unique_ptr<ParentWatch> parent_;
  const std::vector<int> processes_;
  std::map<int, std::shared_ptr<Channel>> channels_;  // of each process, so that each is told to have left
  std::shared_ptr<Channel> channel_;                  // the first of them
  std::string address_;
  std::optional<Assigned> assigned_;
  std::optional<ProcessEnd> first_end_;
  std::optional<int> code_;
  milliseconds grace_{2000};
  bool ending_ = false;
  StopRequests requests_;
  Agent agent_;
};

}  // namespace

int run_as_agent(EventLoop& loop, const AgentRequest& request, const Host& host) {
  RemoteAgent agent(loop, request, host);
  return agent.run();
}

}  // namespace convoy
