// Which of a host's addresses other hosts can reach: what the control channel listens on, and the data between ranks uses.
//
// Nothing is taken on trust: where a choice was one of several it is told, and whoever cannot reach the address says which
// it was and how to name another (launch.address).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

struct Interface {
  std::string name;     // eth0
  std::string address;  // numeric, IPv4 or IPv6
  int prefix = 0;       // bits of the network
  bool loopback = false;
};
// Those that are up, IPv4 before IPv6; no link-local addresses, which mean nothing without an interface.
std::vector<Interface> interfaces_here();
Json to_json(const std::vector<Interface>& interfaces);
std::vector<Interface> interfaces_from_json(const Json& json);
std::string shown(const std::vector<Interface>& interfaces);  // "eth0 10.0.0.5/24, …" without loopback

bool is_loopback(const std::string& address);
// Whether two numeric addresses are of one network of so many bits.
bool same_network(const std::string& a, const std::string& b, int prefix);

// The first interface of `here` whose network every one of `others` has an address in. A network where another host has
// our own address is not one they share: containers' bridges are 172.17.0.1 everywhere.
std::optional<Interface> common_network(const std::vector<Interface>& here,
                                        const std::vector<std::vector<Interface>>& others);

// Those that lead from no host to another, as "ADDRESS/BITS": the very same address on several hosts.
std::vector<std::string> repeated_networks(const std::vector<std::vector<Interface>>& hosts);

// The address of this host from which packets to `host` (a name or an address) would leave; "" where no way leads there,
// or it is this host itself.
std::string way_to(const std::string& host);
// Which of this host's own addresses a name or an address means; "" where none.
std::string own_address(const std::string& host);
bool is_here(const std::string& host);  // this host's name, or a name or address that leads to one of its interfaces

// launch.address as the interface that it means here: an address as it is, of a network (10.0.0.0/16) this host's own.
// Error(rendezvous) naming what there is.
std::string configured_address(const std::string& configured, const std::vector<Interface>& here);

// "sn[1-3,7],login" as Slurm writes lists of hosts.
std::vector<std::string> hosts_in_list(const std::string& list);

}  // namespace convoy
