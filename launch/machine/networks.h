// Finds the address of a host that other hosts can reach, for the control channel and for data between ranks.
//
// A choice between several addresses is logged. A rank that cannot reach the address reports it and names
// launch.address.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {

struct Interface {
  std::string name;     // eth0
  std::string address;  // bits of the network part
  int prefix = 0;       // bits of the network
  bool loopback = false;
};
// Interfaces that are up, IPv4 before IPv6, without link-local addresses, which need an interface name.
std::vector<Interface> interfaces_here();
CONVOY_JSON(Interface, name, address, prefix, loopback)
std::string shown(const std::vector<Interface>& interfaces);  // "eth0 10.0.0.5/24, …", without loopback

bool is_loopback(const std::string& address);
// True if two numeric addresses share their first `prefix` bits.
bool same_network(const std::string& a, const std::string& b, int prefix);

// First interface of `here` with a network in which every other host has an address. A network in which another host
// has the same address does not count: bridges of containers are 172.17.0.1 on every host.
std::optional<Interface> common_network(const std::vector<Interface>& here,
                                        const std::vector<std::vector<Interface>>& others);

// Networks that connect no hosts, as "ADDRESS/BITS": several hosts have the same address there.
std::vector<std::string> repeated_networks(const std::vector<std::vector<Interface>>& hosts);

// Address of this host from which packets to `host` (a name or an address) leave; "" if there is no route, or if it is
// this host.
std::string address_towards(const std::string& host);
// Resolves a name or an address of this host to its address; "" for another host.
std::string local_address_of(const std::string& host);
bool is_here(const std::string& host);  // this host's name, or a name or address of one of its interfaces

// Resolves launch.address on this host: an address stays, a network (10.0.0.0/16) becomes this host's address in it.
// Error(rendezvous) lists the available addresses.
std::string configured_address(const std::string& configured, const std::vector<Interface>& here);

// Hosts in a Slurm host list such as "sn[1-3,7],login".
std::vector<std::string> hosts_in_list(const std::string& list);

// `--hosts a,b` and `--hosts a:4,b:4`: a host and its number of ranks.
struct HostShare {
  std::string name;  // as given to the remote shell
  int ranks = 0;     // 0: not given
};

// Parses HOST or HOST:RANKS; an IPv6 address is in brackets, [fd00::5]:4. Error(command_line) for an empty or repeated
// name, a name that a remote shell would read as an option, or an invalid number; also if only some items give a
// number.
std::vector<HostShare> host_shares(const std::vector<std::string>& items);

// Host of each rank if the shares give numbers, else empty. Error(command_line) if they contradict `ranks` (0: not
// given).
std::vector<int> rank_hosts(const std::vector<HostShare>& shares, int ranks);

// Command that executes `words` on `host`: the configured argv, the host, and the words quoted for any shell.
// Error(config) if a word cannot be quoted for every shell, such as one with a line break.
std::vector<std::string> remote_command(const std::vector<std::string>& remote_shell, const std::string& host,
                                        const std::vector<std::string>& words);

}  // namespace convoy
