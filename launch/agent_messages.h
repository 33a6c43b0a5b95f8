// What `convoy run --hosts` and the `convoy` that it starts on another host say to each other before the control channel
// is there: two lines down the remote shell's standard input, one line back. The secret is in the second and never in argv.
//
//   → request   version, folder to work in, environment, whether to look for GPUs
//   ← hello     version, host, networks; or what is wrong there
//   → plan      where the control channel is, and which processes of the job this host starts
// The end of the standard input means that whoever started it is gone.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/topology.h"
#include "launch/environment.h"
#include "launch/networks.h"

namespace convoy {

struct RemoteRequest {
  std::string version;
  std::string folder;  // absolute: paths in a configuration are relative to it
  Variables environment;
  bool gpus = false;
};
struct RemoteHello {
  std::string version;
  Host host;
  std::vector<Interface> interfaces;
  std::string problem;  // "": none; then the rest is not told
};
struct RemotePlan {
  std::string channel;         // to_string(ChannelAddress)
  std::vector<int> processes;  // indices into Job::processes
  int size = 1;                // processes of the job
};

std::string to_line(const RemoteRequest& request);
std::string to_line(const RemoteHello& hello);
std::string to_line(const RemotePlan& plan);
RemoteRequest remote_request(const std::string& line);  // Error(rendezvous) for a line of another version
RemotePlan remote_plan(const std::string& line);
// Nothing for other lines: login shells may write what they like.
std::optional<RemoteHello> remote_hello(const std::string& line);

// What goes along to other hosts: settings of libraries that ranks use. Not what is another host's own (PATH, HOME, which
// GPUs are shown).
Variables forwarded(const Variables& variables);

}  // namespace convoy
