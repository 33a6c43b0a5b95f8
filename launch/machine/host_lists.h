// Lists of hosts as users and Slurm write them, and the command that runs a program on a host.
#pragma once
#include <string>
#include <vector>

#include "core/control/addresses.h"

namespace convoy {

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

// Kind of a mistake in the hosts: command_line if an option gave them, config if a variable did.
inline Failure failure_of_source(const std::string& source) {
  return source.rfind("--", 0) == 0 ? Failure::command_line : Failure::config;
}

// Host of each rank if the shares give numbers, else empty. Throws Error if they contradict `ranks` (0: not given).
// `source`: the option or variable that gave the shares, for the message and its kind (failure_of_source).
std::vector<int> rank_hosts(const std::vector<HostShare>& shares, int ranks, const std::string& source = "--hosts");

// Command that executes `words` on `host`: the configured argv, the host, and the words quoted for any shell.
// Error(config) if a word cannot be quoted for every shell, such as one with a line break.
std::vector<std::string> remote_command(const std::vector<std::string>& remote_shell, const std::string& host,
                                        const std::vector<std::string>& words);

}  // namespace convoy
