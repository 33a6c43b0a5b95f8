#include "launch/machine/environment.h"

#include <netdb.h>

#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "core/base/error.h"
#include "core/config/node.h"
#include "core/files/limits.h"
#include "launch/machine/networks.h"

namespace convoy {
namespace {

// The variables of one platform; "" if it has none for a value.
struct NodePlatform {
  std::string name;
  std::string nodes_variable, node_variable, host_variable, port_variable, ranks_variable;
  bool first_of_list = false;  // the host is the first of a list
};

const std::vector<NodePlatform>& node_platforms() {
  static const std::vector<NodePlatform> all{
      {"Kubeflow", "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE"},
      {"SkyPilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "", "", true},
      {"this environment", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", ""}};
  return all;
}

constexpr char index_variable[] = "JOB_COMPLETION_INDEX";

std::string value_in(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return name.empty() || found == variables.end() ? "" : found->second;
}

int count_in(const std::string& name, const std::string& text, int least) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > std::numeric_limits<int>::max())
    throw Error(Failure::config, "environment: ", name, "=", printable(text), " is no number from ", least,
                " on; unset it, or correct it");
  return static_cast<int>(value);
}

uint16_t port_in(const std::string& what, const std::string& text, Failure kind) {
  char* end = nullptr;
  const long port = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || port < 1 || port > 65535)
    throw Error(kind, what, ": ", printable(text), " is no port; ports are 1 to 65535");
  return static_cast<uint16_t>(port);
}

// HOST, HOST:PORT, or [ADDRESS]:PORT for IPv6.
void read_rendezvous_option(const std::string& text, NodeRole& role) {
  const auto refuse = [&] {
    throw Error(Failure::command_line, "--rendezvous ", printable(text),
                ": write HOST or HOST:PORT, where HOST is node 0; an IPv6 address is in brackets, [fd00::5]:29500");
  };
  std::string port;
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find(']');
    if (end == std::string::npos || (end + 1 < text.size() && text[end + 1] != ':')) refuse();
    role.host = text.substr(1, end - 1);
    if (end + 1 < text.size()) port = text.substr(end + 2);
    if (end + 1 < text.size() && port.empty()) refuse();
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string::npos && text.find(':', colon + 1) != std::string::npos) refuse();
    role.host = text.substr(0, colon);
    if (colon != std::string::npos) port = text.substr(colon + 1);
    if (colon != std::string::npos && port.empty()) refuse();
  }
  if (role.host.empty() || role.host.front() == '-') refuse();
  if (!port.empty()) role.port = port_in("--rendezvous", port, Failure::command_line);
}

// "2", or the range "2:2" of an elastic launcher.
int nodes_in(const std::string& name, const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return count_in(name, text, 1);
  if (text.substr(0, colon) != text.substr(colon + 1))
    throw Error(Failure::config, "environment: ", name, "=", printable(text),
                " is a range; the number of nodes is fixed, so set ", name, "=", printable(text.substr(colon + 1)));
  return count_in(name, text.substr(colon + 1), 1);
}

std::vector<std::string> words_of(const std::string& list) {
  std::istringstream words(list);
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
}

// Node 0 of an Indexed Job: its pods are NAME-INDEX.SERVICE…, so the name of this host names the others.
std::string first_pod(const std::string& full_name, int index) {
  const size_t dot = full_name.find('.');
  const std::string pod = full_name.substr(0, dot), ending = "-" + std::to_string(index);
  if (pod.size() <= ending.size() || pod.compare(pod.size() - ending.size(), ending.size(), ending) != 0) return "";
  return pod.substr(0, pod.size() - ending.size()) + "-0" + (dot == std::string::npos ? "" : full_name.substr(dot));
}

class RoleReader {
 public:
  RoleReader(const NodeOptions& typed, const Variables& variables, const std::function<std::string()>& full_name)
      : typed_(typed), variables_(variables), full_name_(full_name) {}

  std::optional<NodeRole> role() {
    if (typed_.nodes > 0) take(nodes_, "--nodes", typed_.nodes);
    if (typed_.node >= 0) take(node_, "--node-rank", typed_.node);
    if (!typed_.rendezvous.empty()) read_rendezvous_option(typed_.rendezvous, role_);
    for (const NodePlatform& platform : node_platforms()) read_nodes(platform);
    for (const NodePlatform& platform : node_platforms()) read(platform);
    read_index();
    if (!nodes_.value) return missing_nodes();
    if (*nodes_.value > 1 && !node_.value) missing("--node-rank", "NODE_RANK", "the number of this node, from 0");
    if (node_.value && *node_.value >= *nodes_.value)
      throw Error(failure_of_source(node_.source), place(node_.source), "=", *node_.value, ": nodes are 0 to ",
                  *nodes_.value - 1, ", because ", nodes_.source, "=", *nodes_.value);
    role_.nodes = *nodes_.value;
    role_.from = nodes_.source;
    if (role_.nodes == 1) return role_.ranks > 0 ? std::optional<NodeRole>(role_) : std::nullopt;
    if (role_.host.empty()) missing("--rendezvous", "MASTER_ADDR", "the host of node 0");
    role_.node = *node_.value;
    return role_;
  }

 private:
  struct Number {
    std::optional<int> value;
    std::string source;  // option or variable
  };

  static bool is_option(const std::string& source) { return failure_of_source(source) == Failure::command_line; }
  static std::string place(const std::string& source) { return is_option(source) ? source : "environment: " + source; }

  // Options win over variables; two variables must agree.
  void take(Number& known, const std::string& source, int value) {
    if (!known.value) {
      known = {value, source};
    } else if (!is_option(known.source) && *known.value != value) {
      throw Error(Failure::config, "environment: ", source, "=", value, " contradicts ", known.source, "=",
                  *known.value, "; unset the one that does not describe this job, or type --nodes and --node-rank");
    }
  }

  void read_nodes(const NodePlatform& platform) {
    const std::string nodes = value_in(variables_, platform.nodes_variable);
    if (!nodes.empty()) take(nodes_, platform.nodes_variable, nodes_in(platform.nodes_variable, nodes));
  }

  void read(const NodePlatform& platform) {
    // Without a number of nodes the other variables may belong to a launcher of single ranks.
    if (!nodes_.value) return;
    const std::string node = value_in(variables_, platform.node_variable);
    if (!node.empty()) take(node_, platform.node_variable, count_in(platform.node_variable, node, 0));
    if (*nodes_.value > 1) {
      const std::string host = value_in(variables_, platform.host_variable);
      take_host(platform, platform.first_of_list ? first_of(platform, words_of(host)) : host);
      take_port(platform);
    }
    const std::string ranks = value_in(variables_, platform.ranks_variable);
    // These words leave the number to convoy.
    if (!ranks.empty() && ranks != "auto" && ranks != "gpu" && ranks != "cpu")
      role_.ranks = count_in(platform.ranks_variable, ranks, 1);
  }

  std::string first_of(const NodePlatform& platform, const std::vector<std::string>& hosts) const {
    if (hosts.empty()) return "";
    if (typed_.nodes == 0 && hosts.size() != static_cast<size_t>(*nodes_.value))
      throw Error(Failure::config, "environment: ", platform.host_variable, " has ", hosts.size(),
                  hosts.size() == 1 ? " address" : " addresses", ", which contradicts ", nodes_.source, "=",
                  *nodes_.value, "; correct one of them, or type --nodes, --node-rank and --rendezvous");
    return hosts.front();
  }

  void take_host(const NodePlatform& platform, const std::string& host) {
    if (host.empty() || !typed_.rendezvous.empty()) return;
    if (role_.host.empty()) {
      role_.host = host;
      host_source_ = platform.host_variable;
    } else if (role_.host != host) {
      throw Error(Failure::config, "environment: ", platform.host_variable, " names ", printable(host), ", and ",
                  host_source_, " names ", printable(role_.host),
                  "; unset the one that does not describe this job, or type --rendezvous HOST:PORT");
    }
  }

  void take_port(const NodePlatform& platform) {
    const std::string text = value_in(variables_, platform.port_variable);
    if (text.empty() || !typed_.rendezvous.empty()) return;
    const uint16_t port = port_in("environment: " + platform.port_variable, text, Failure::config);
    if (!port_source_.empty() && role_.port != port)
      throw Error(Failure::config, "environment: ", platform.port_variable, "=", port, " contradicts ", port_source_,
                  "=", role_.port, "; unset the one that does not describe this job, or type --rendezvous HOST:PORT");
    role_.port = port;
    port_source_ = platform.port_variable;
  }

  // JOB_COMPLETION_INDEX alone does not make the pods of a Job one run: they may be runs of their own.
  void read_index() {
    const std::string index = value_in(variables_, index_variable);
    if (index.empty() || !nodes_.value) return;
    const int value = count_in(index_variable, index, 0);
    take(node_, index_variable, value);
    if (role_.host.empty()) role_.host = first_pod(full_name_(), value);
  }

  std::optional<NodeRole> missing_nodes() {
    if (typed_.any()) missing("--nodes", "NNODES", "the number of nodes");
    return std::nullopt;
  }

  [[noreturn]] void missing(const char* option, const char* variable, const char* what) const {
    const std::string given = nodes_.value ? nodes_.source : typed_.node >= 0 ? "--node-rank" : "--rendezvous";
    throw Error(failure_of_source(given), place(given), " is given, but not ", what, "; type ", option,
                ", or set the variable ", variable);
  }

  const NodeOptions& typed_;
  const Variables& variables_;
  const std::function<std::string()>& full_name_;
  NodeRole role_;
  Number nodes_, node_;
  std::string host_source_, port_source_;
};

}  // namespace

std::optional<NodeRole> node_role(const NodeOptions& typed, const Variables& variables,
                                  const std::function<std::string()>& full_name) {
  // Only a rank process has this variable: a `convoy` started in it is a separate run.
  if (!value_in(variables, "CONVOY_PROCESS").empty() && !typed.any()) return std::nullopt;
  return RoleReader(typed, variables, full_name).role();
}

std::string full_host_name() {
  const std::string name = host_name();
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (name.find('.') != std::string::npos || getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return name;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  return found->ai_canonname == nullptr ? name : found->ai_canonname;
}

}  // namespace convoy
