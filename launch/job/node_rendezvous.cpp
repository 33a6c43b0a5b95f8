#include "launch/job/node_rendezvous.h"

#include <algorithm>
#include <random>

#include "core/base/log.h"
#include "core/base/version.h"
#include "core/control/addresses.h"
#include "core/control/exit_codes.h"
#include "core/files/limits.h"
#include "launch/job/run_attempt.h"
#include "launch/job/run_modes.h"
#include "launch/machine/host_lists.h"
#include "launch/machine/topology.h"
#include "launch/prepare/prepare.h"
#include "strategies/plans/catalogue.h"

namespace convoy {
namespace {

using std::chrono::milliseconds;

constexpr char rendezvous_job[] = "nodes", node_topic[] = "node", answer_prefix[] = "answer/";
constexpr char same_secret[] = "give all nodes the same CONVOY_SECRET, or none";
constexpr milliseconds farewell{2000};  // for the other nodes to leave

std::string secret_of(const Variables& variables) {
  const auto found = variables.find("CONVOY_SECRET");
  return found == variables.end() ? "" : found->second;
}

std::string address_text(const NodeRole& role) { return str(role.host, " port ", role.port); }

// The address of this host that the other nodes reach. A host's own name may lead to its loopback.
std::string address_of_node_0(const NodeRole& role) {
  const std::string local = local_address_of(role.host);
  if (local.empty()) {
    const std::vector<std::string> found = addresses_of(role.host);
    throw Error(Failure::rendezvous, "node 0 on ", host_name(), ": ", role.host,
                found.empty() ? " cannot be resolved"
                              : str(" is ", join(found, ", "), ", which is no address of this host; it has ",
                                    shown(interfaces_here())),
                "; start node 0 on the host that --rendezvous names, or name this one");
  }
  const bool meant = role.host == "localhost" || role.host == local;
  for (const Interface& i : interfaces_here())
    if (is_loopback(local) && !meant && !i.loopback) return i.address;
  return local;
}

int random_participant() {
  std::random_device device;
  return -2 - static_cast<int>(device() % 1'000'000'000);
}

}  // namespace

NodeRendezvous::NodeRendezvous(EventLoop& loop, const NodeRole& role, const Variables& variables,
                               const LaunchConfig& launch)
    : loop_(loop), role_(role), address_(address_of_node_0(role)), restarts_(launch.max_restarts > 0), tasks_(loop) {
  ChannelServerOptions options;
  options.interface_address = address_;
  options.port = role.port;
  options.job = rendezvous_job;
  options.secret = secret_of(variables);
  options.heartbeat = to_milliseconds(launch.heartbeat);
  ChannelServerEvents events;
  events.on_post = [this](int participant, const std::string& topic, const Json& body) {
    if (topic == node_topic) tasks_.post([this, participant, body] { posted(participant, body); });
  };
  events.on_leave = [this](int participant, const std::string&, bool) {
    tasks_.post([this, participant] { left(participant); });
  };
  events.on_refused = [this](const std::string& name, const std::string& why) {
    tasks_.post([this, name, why] { refused_ = str(name, " was refused: ", why, "; ", same_secret); });
  };
  server_ = serve_channel(options, events);
  channel_ = connect_channel(server_->address(), -1, "node 0", milliseconds(2000));
}

NodeRendezvous::~NodeRendezvous() {
  channel_.reset();
  server_.reset();
}

void NodeRendezvous::begin_attempt() {
  planned_ = false;
  problem_.reset();
  for (auto guest = guests_.begin(); guest != guests_.end();)
    guest = guest->second.left ? guests_.erase(guest) : std::next(guest);
}

const RemoteHello* NodeRendezvous::hello(int node) const {
  for (const auto& [participant, guest] : guests_)
    if (guest.node == node && !guest.left && guest.hello) return &*guest.hello;
  return nullptr;
}

const std::optional<Error>& NodeRendezvous::problem() const { return problem_; }

NodeRendezvous::Guest* NodeRendezvous::guest_of(int node) {
  for (auto& [participant, guest] : guests_)
    if (guest.node == node && !guest.left) return &guest;
  return nullptr;
}

void NodeRendezvous::answer(Guest& guest, const Json& body) {
  try {
    channel_->set(str(answer_prefix, guest.token, "/", guest.answers++), body.dump());
  } catch (const Error&) {
    // The node has left, or this process ends: both are noticed elsewhere.
  }
}

void NodeRendezvous::refuse(Guest& guest, const Error& error) {
  answer(guest, {{"problem", error.what()}, {"code", exit_code_of(error.kind())}});
}

void NodeRendezvous::send_plan(int node, const RemotePlan& plan) {
  planned_ = true;
  if (Guest* guest = guest_of(node)) {
    answer(*guest, {{"plan", to_line(plan)}});
    guest->hello.reset();  // it posts again when its processes have ended
  }
}

void NodeRendezvous::posted(int participant, const Json& body) {
  Guest guest;
  guest.node = body.at("node").get<int>();
  guest.token = body.at("token").get<std::string>();
  if (const auto known = guests_.find(participant); known != guests_.end()) {
    known->second.hello = remote_hello(body.at("hello").get<std::string>());
    return;
  }
  guest.hello = remote_hello(body.at("hello").get<std::string>());
  guest.host = guest.hello ? guest.hello->host.name : "another host";
  const std::string who = str("node ", guest.node, " on ", guest.host);
  const int nodes = body.at("nodes").get<int>();
  const auto fail = [&](const Error& error) {
    refuse(guest, error);
    if (!planned_ && !problem_) problem_ = error;
  };
  if (nodes != role_.nodes)
    return fail({Failure::config, who, " was started for ", nodes, " nodes, and node 0 on ", host_name(), " for ",
                 role_.nodes, " (", role_.from, "); give all nodes the same number"});
  const Guest* other = guest_of(guest.node);
  if (guest.node == 0 || (other != nullptr && !planned_)) {
    const std::string where = guest.node == 0 ? host_name() : other->host;
    return fail({Failure::config, "two nodes have the number ", guest.node, ": on ", where, " and on ", guest.host,
                 "; give each node its own --node-rank"});
  }
  if (other != nullptr) {
    if (!restarts_)
      return fail({Failure::config, "the job runs, and its node ", guest.node, " is on ", other->host, "; give ",
                   guest.host, " its own --node-rank, or start it after the end of the job"});
    log::warning(str(who, " joined while node ", guest.node,
                     " takes part: it waits, and replaces that node in the next attempt"));
  }
  guests_[participant] = guest;
}

void NodeRendezvous::left(int participant) {
  const auto found = guests_.find(participant);
  if (found != guests_.end()) found->second.left = true;
}

void NodeRendezvous::finish(int code, const std::string& reason) {
  Json end{{"code", code}};
  if (!reason.empty()) end["problem"] = reason;
  for (auto& [participant, guest] : guests_)
    if (!guest.left) answer(guest, end);
  loop_.run_until(
      [this] {
        return std::all_of(guests_.begin(), guests_.end(), [](const auto& entry) { return entry.second.left; });
      },
      farewell);
}

// --- Another node ---

namespace {

class NodeAgent {
 public:
  NodeAgent(EventLoop& loop, const PreparedRun& run, const NodeRole& role)
      : loop_(loop), run_(run), role_(role), tasks_(loop) {}

  int run() {
    listen_to_signals();
    if (const auto code = find_node_0()) return *code;
    while (true) {
      post_host();
      log::info(str(here(), ": joined at ", address_text(role_)));
      const std::optional<Json> answer = next_answer();
      if (!answer) return last_code_;
      if (answer->contains("problem")) {
        log::error(str(here(), ": ", answer->at("problem").get<std::string>()));
        return answer->at("code").get<int>();
      }
      if (answer->contains("code")) return answer->at("code").get<int>();
      last_code_ = run_ranks(remote_plan(answer->at("plan").get<std::string>()));
      listen_to_signals();
      if (stopped_) return last_code_;
    }
  }

 private:
  std::string here() const { return str("node ", role_.node, " on ", host_name()); }

  // Stops the wait for nodes on a signal. The agent's event loop replaces this handler.
  void listen_to_signals() {
    loop_.on_signal([this](int) {
      stopped_ = true;
      last_code_ = exit_code::stopped;
    });
  }

  // Connects to node 0. Returns an exit code if that fails.
  std::optional<int> find_node_0() {
    const auto started = std::chrono::steady_clock::now();
    const double limit = run_.config.launch.rendezvous;
    while (!stopped_) {
      std::string problem = connect();
      if (problem.empty()) return std::nullopt;
      if (!refused_.empty()) problem = refused_;  // node 0 may end first
      const double waited = seconds_since(started);
      if (waited > limit) {
        log::error(str(here(), ": node 0 does not answer at ", address_text(role_), " within ", human_seconds(limit),
                       " (launch.rendezvous): ", problem,
                       refused_.empty() ? str("; is node 0 started, and does ", role_.host, " lead to it from here?")
                                        : str("; ", same_secret)));
        return exit_code::rendezvous;
      }
      loop_.run_until([this] { return stopped_; }, milliseconds(waited < 5 ? 20 : 200));
    }
    return exit_code::stopped;
  }

  // Returns why it failed, or "".
  std::string connect() {
    const std::vector<std::string> addresses = addresses_of(role_.host);
    std::string problem = str(role_.host, " cannot be resolved");
    for (const std::string& address : addresses) try {
        channel_ = connect_channel({address, role_.port, rendezvous_job, secret_of(run_.variables)},
                                   random_participant(), here(), milliseconds(500));
        channel_->on_lost([this] { tasks_.post([this] { lost_ = true; }); });
        channel_->watch(answer_prefix + token_ + "/", [this](const std::string&, const std::string& value) {
          tasks_.post([this, value] { answers_.push_back(Json::parse(value)); });
        });
        return "";
      } catch (const ChannelRefusal& error) {
        problem = refused_ = error.what();
      } catch (const Error& error) {
        if (error.kind() != Failure::rendezvous && error.kind() != Failure::peer_lost) throw;
        problem = error.what();
      }
    return problem;
  }

  void post_host() {
    RemoteHello hello;
    hello.version = version;
    try {
      if (!run_.config.program.empty()) executable_path(run_.config.program.front(), program_advice);
      hello.host = this_host({may_use_gpus(run_.config), false});
      hello.interfaces = interfaces_here();
    } catch (const Error& error) {
      hello.problem = error.what();
    }
    channel_->post(node_topic,
                   {{"token", token_}, {"node", role_.node}, {"nodes", role_.nodes}, {"hello", to_line(hello)}});
    host_ = hello.host;
  }

  // Nothing if node 0 is gone, or if this node was stopped.
  std::optional<Json> next_answer() {
    loop_.run_until([this] { return stopped_ || lost_ || !answers_.empty(); });
    if (answers_.empty()) {
      if (!stopped_ && last_code_ == exit_code::done) last_code_ = exit_code::rendezvous;
      if (!stopped_)
        log::error(str(here(), ": lost the connection to node 0 at ", address_text(role_),
                       "; see its output, and if it has ended, start all nodes again"));
      return std::nullopt;
    }
    Json answer = answers_.front();
    answers_.erase(answers_.begin());
    return answer;
  }

  int run_ranks(const RemotePlan& plan) {
    AgentRequest request;
    request.as.launcher = Launcher::convoy;
    request.as.rank = plan.processes.at(0);
    request.as.size = plan.size;
    request.as.channel = plan.channel;
    request.processes = plan.processes;
    request.rank_program = run_.rank_program;
    request.rendezvous = run_.config.launch.rendezvous;
    request.variables = without_ranks(run_.variables);
    request.config = without_locations(run_.config.resolved);
    return run_as_agent(loop_, request, host_);
  }

  EventLoop& loop_;
  const PreparedRun& run_;
  const NodeRole& role_;
  const std::string token_ = random_token();
  std::string refused_;  // the last reason for which node 0 refused this one
  Host host_;
  std::vector<Json> answers_;
  bool lost_ = false, stopped_ = false;
  int last_code_ = exit_code::done;
  OwnedTasks tasks_;
  std::shared_ptr<Channel> channel_;
};

}  // namespace

void refuse_one_rank(const std::string& source, size_t hosts, const char* what) {
  throw Error(failure_of_source(source), source, ": the job has one rank, and each of the ", hosts, " ", what,
              " needs one at least; type --ranks ", hosts,
              " with a strategy of several ranks, such as --set strategy.name=", equal_ranks_strategy().name);
}

void refuse_one_rank_on_nodes(const PreparedRun& run, const NodeRole& role) {
  Host host = this_host({may_use_gpus(run.config), false});
  Topology topology;
  for (int node = 0; node < role.nodes; ++node) {
    host.name = str("node ", node);
    topology.hosts.push_back(host);
  }
  try {
    if (plan_and_place(run, topology).job.ranks.size() > 1) return;
  } catch (const Error&) {
    return;  // the real nodes may have more cores or devices
  }
  refuse_one_rank(role.from, size_t(role.nodes), "nodes");
}

int run_as_node(EventLoop& loop, const PreparedRun& run, const NodeRole& role) {
  return NodeAgent(loop, run, role).run();
}

}  // namespace convoy
