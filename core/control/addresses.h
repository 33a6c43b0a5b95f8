// Finds the address of a host that other hosts can reach, for the control channel and for data between ranks.
//
// A choice between several addresses is logged. A rank that cannot reach the address reports it and names
// launch.address.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace convoy {

struct Interface {
  std::string name;     // eth0
  std::string address;  // numeric address
  int prefix = 0;       // bits of the network part
  bool loopback = false;
};
// Returns the interfaces that are up, IPv4 before IPv6. Leaves out link-local addresses, which need an interface name.
std::vector<Interface> interfaces_here();
CONVOY_JSON(Interface, name, address, prefix, loopback)
std::string shown(const std::vector<Interface>& interfaces);  // "eth0 10.0.0.5/24, …", without loopback

bool is_loopback(const std::string& address);
// True if two numeric addresses share their first `prefix` bits.
bool same_network(const std::string& a, const std::string& b, int prefix);

// Returns the first interface of `here` with a network in which every other host has an address. A network in which
// another host has the same address does not count: bridges of containers are 172.17.0.1 on every host.
std::optional<Interface> common_network(const std::vector<Interface>& here,
                                        const std::vector<std::vector<Interface>>& others);

// Returns the networks that connect no hosts, as "ADDRESS/BITS": several hosts have the same address there.
std::vector<std::string> repeated_networks(const std::vector<std::vector<Interface>>& hosts);

// Returns the address of this host from which packets to `host` (a name or an address) leave. Returns "" if there is no
// route, or if `host` is this host.
std::string address_towards(const std::string& host);
// Resolves a name or an address of this host to its address; "" for another host.
std::string local_address_of(const std::string& host);
std::vector<std::string> addresses_of(const std::string& host);  // numeric addresses; empty if it cannot be resolved
bool is_here(const std::string& host);  // true for this host's name, and names and addresses of its interfaces

// Resolves launch.address on this host: an address stays, a network (10.0.0.0/16) becomes this host's address in it.
// Error(rendezvous) lists the available addresses.
std::string configured_address(const std::string& configured, const std::vector<Interface>& here);

// Returns the address for data between ranks: launch.address if this host has it, else the interface towards the
// control channel. If the channel uses the loopback, so does the data. "": no route; the backend chooses.
std::string data_address(const std::string& configured, const std::string& channel_host);

}  // namespace convoy
