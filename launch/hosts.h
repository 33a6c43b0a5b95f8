// `--hosts a,b` and `--hosts a:4,b:4`: which hosts a run starts its ranks on, and how many on each.
#pragma once
#include <string>
#include <vector>

namespace convoy {

struct HostShare {
  std::string name;  // as the remote shell is given it
  int ranks = 0;     // 0: not said
};

// Each item is HOST or HOST:RANKS; an IPv6 address stands in brackets, [fd00::5]:4. Error(command_line) for a name that is
// empty, that a remote shell would take for an option or that is given twice, for a number that is none, and where only
// some say how many ranks.
std::vector<HostShare> host_shares(const std::vector<std::string>& items);

// Host of each rank, in order of ranks, where shares were said; empty where they were not. Error(command_line) when they
// contradict `ranks` (0: not said).
std::vector<int> rank_hosts(const std::vector<HostShare>& shares, int ranks);

// What executes `words` on `host`: the configured argv, the host, and the words quoted for whatever shell reads them
// there. Error(config) where a word cannot be quoted for every shell (a line break).
std::vector<std::string> remote_command(const std::vector<std::string>& remote_shell, const std::string& host,
                                        const std::vector<std::string>& words);

}  // namespace convoy
