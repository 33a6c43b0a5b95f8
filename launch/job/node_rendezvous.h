// NodeRendezvous: one `convoy` per node finds the others at one address, without a remote shell and without a shared
// folder.
//
// Node 0 serves a channel at the rendezvous. Every other node connects, posts its host, and receives the processes to
// start and the address of the job's control channel. It stays connected, so that a job can be restarted on the same
// nodes, and ends with the job's exit code. With launch.max_restarts a node that was started again takes its place in
// the next attempt; else it is refused.
// The variable CONVOY_SECRET, equal on all nodes, admits only those that know it; without it, all that reach the port.
//
//   → node     {token, node, nodes, hello}             topic; again after each attempt
//   ← answer   {plan} | {problem, code} | {code}       key answer/TOKEN/NUMBER
// Threads: the event loop's.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/control/channel.h"
#include "launch/job/agent.h"
#include "launch/machine/environment.h"
#include "launch/prepare/prepare.h"
#include "launch/process/event_loop.h"

namespace convoy {

// Node 0's side.
class NodeRendezvous {
 public:
  // Serves at once. Error(rendezvous) if the host of the rendezvous is not this one, or if its port is taken.
  NodeRendezvous(EventLoop& loop, const NodeRole& role, const Variables& variables, const LaunchConfig& launch);
  ~NodeRendezvous();

  const NodeRole& role() const { return role_; }
  const std::string& address() const { return address_; }  // at which all nodes reach this host
  // Forgets what nodes have posted: they post again for the next attempt.
  void begin_attempt();
  const RemoteHello* hello(int node) const;                // null: the node has not joined this attempt
  const std::optional<Error>& problem() const;             // why the job cannot start: contradictory nodes
  const std::string& refused() const { return refused_; }  // a sentence about a refused node; "": none
  void send_plan(int node, const RemotePlan& plan);
  // Ends all nodes with the exit code. `reason`: they print it; "": the output of their ranks has it. Waits a short
  // time until they have left.
  void finish(int code, const std::string& reason = "");

 private:
  struct Guest {
    int node = 0;
    std::string host;
    std::string token;
    int answers = 0;
    bool left = false;
    std::optional<RemoteHello> hello;
  };
  void posted(int participant, const Json& body);
  void left(int participant);
  Guest* guest_of(int node);
  void answer(Guest& guest, const Json& body);
  void refuse(Guest& guest, const Error& error);

  EventLoop& loop_;
  const NodeRole role_;
  std::string address_;
  std::optional<Error> problem_;
  std::string refused_;
  std::map<int, Guest> guests_;  // by participant
  bool planned_ = false;         // this attempt's plans were sent
  const bool restarts_;          // launch.max_restarts: a second node may replace one that is lost
  OwnedTasks tasks_;
  std::unique_ptr<ChannelServer> server_;
  std::shared_ptr<Channel> channel_;
};

[[noreturn]] void refuse_one_rank(const std::string& source, size_t hosts, const char* what);  // "nodes" or "hosts"
// Refuses a job of one rank before the wait for other nodes. Plans as if all nodes had the resources of this one.
void refuse_one_rank_on_nodes(const PreparedRun& run, const NodeRole& role);

// Another node: starts the ranks that node 0 assigns. Returns the job's exit code.
int run_as_node(EventLoop& loop, const PreparedRun& run, const NodeRole& role);

}  // namespace convoy
