#include "launch/rendezvous.h"

#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <sstream>

#include "core/files.h"
#include "launch/networks.h"
#include "launch/summary.h"

namespace convoy {
namespace {

constexpr size_t longest_address = 4096;

std::string path_of(const std::string& folder, const std::string& job) { return str(folder, "/.rendezvous-", job); }

std::string value_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// The addresses in a URI of mpirun's daemons: "123.0;tcp://10.0.0.5,10.1.0.5:4711;tcp6://[fd00::5]:4712".
std::vector<std::string> addresses_in(const std::string& uri) {
  std::vector<std::string> found;
  for (size_t at = uri.find("://"); at != std::string::npos; at = uri.find("://", at + 1)) {
    const std::string part = uri.substr(at + 3, uri.find(';', at) - at - 3);
    std::istringstream list(part.substr(0, part.rfind(':')));
    for (std::string address; std::getline(list, address, ',');) {
      if (!address.empty() && address.front() == '[') address = address.substr(1, address.find(']') - 1);
      found.push_back(address);
    }
  }
  return found;
}

// The one interface that leads to all of them; "" where they differ, or where no way leads to one.
std::string way_to_all(const std::vector<std::string>& hosts) {
  std::set<std::string> ways;
  for (const std::string& host : hosts)
    if (!is_here(host)) ways.insert(way_to(host));
  return ways.size() == 1 ? *ways.begin() : "";
}

// What the launcher tells of the way between its hosts.
std::string told_address(const LaunchedAs& as, const Variables& variables) {
  if (as.launcher == Launcher::slurm) return way_to_all(hosts_in_list(value_of(variables, "SLURM_STEP_NODELIST")));
  if (as.launcher == Launcher::torchrun) {
    const std::string own = own_address(value_of(variables, "MASTER_ADDR"));
    return is_loopback(own) ? "" : own;
  }
  if (as.launcher != Launcher::open_mpi) return "";
  const std::vector<std::string> own = addresses_in(value_of(variables, "OMPI_MCA_orte_local_daemon_uri"));
  for (const std::string& other : addresses_in(value_of(variables, "OMPI_MCA_orte_hnp_uri"))) {
    const std::string way = way_to(other);
    if (!way.empty()) return way;
  }
  std::vector<std::string> four;
  for (const std::string& address : own)
    if (address.find(':') == std::string::npos) four.push_back(address);
  return four.size() == 1 ? four.front() : "";
}

}  // namespace

RendezvousFile::RendezvousFile(const std::string& folder, const std::string& job, const ChannelAddress& address)
    : path_(path_of(folder, job)) {
  try {
    make_private_folder(folder);
  } catch (const Error& error) {
    throw Error(Failure::output, error.what());
  }
  refuse_writable_by_others(folder);
  write_whole(path_, to_string(address) + "\n", false, 0600);
}

RendezvousFile::~RendezvousFile() { unlink(path_.c_str()); }

void remove_rendezvous(const std::string& folder, const std::string& job) { unlink(path_of(folder, job).c_str()); }

std::optional<ChannelAddress> read_rendezvous(const std::string& folder, const std::string& job) {
  const std::string path = path_of(folder, job);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    throw Error(Failure::refused,
                str(path, ": belongs to another user, or others can read it; remove it and start again"));
  const std::string text = read_file_if_any(path, longest_address);
  return text.empty() ? std::nullopt : std::make_optional(channel_address(text.substr(0, text.find('\n'))));
}

std::string data_address(const std::string& configured, const std::string& channel_host) {
  if (is_loopback(channel_host)) return channel_host;
  if (configured.find('/') != std::string::npos) return configured_address(configured, interfaces_here());
  // An address is one host's alone: the others have theirs in its direction.
  if (!configured.empty() && !own_address(configured).empty()) return configured;
  const std::string own = own_address(channel_host);
  return own.empty() ? way_to(channel_host) : own;
}

ServingAddress serving_address(const std::string& configured, const LaunchedAs& as, const Variables& variables) {
  if (!configured.empty()) return {configured_address(configured, interfaces_here()), ""};
  if (as.local_size == as.size) return {"127.0.0.1", ""};
  std::vector<Interface> usable;
  for (const Interface& i : interfaces_here())
    if (!i.loopback) usable.push_back(i);
  if (usable.empty()) return {"127.0.0.1", "this host has no network but its loopback: ranks elsewhere cannot join"};
  const std::string told = told_address(as, variables);
  if (!told.empty()) return {told, ""};
  std::string note;
  if (usable.size() > 1 && usable[1].address.find(':') == std::string::npos)
    note = str("the control channel listens on ", usable[0].address, ", the first of ", shown(usable),
               "; where other hosts cannot reach it, set launch.address to an address or a network (10.0.0.0/16)");
  return {usable.front().address, note};
}

}  // namespace convoy
