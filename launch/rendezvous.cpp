#include "launch/rendezvous.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "launch/summary.h"

namespace convoy {
namespace {

std::string path_of(const std::string& folder, const std::string& job) { return str(folder, "/.rendezvous-", job); }

// The first interface that is up and no loopback.
std::string first_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* at = all; at != nullptr && found.empty(); at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
    found = text;
  }
  freeifaddrs(all);
  return found;
}

}  // namespace

RendezvousFile::RendezvousFile(const std::string& folder, const std::string& job, const ChannelAddress& address)
    : path_(path_of(folder, job)) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    throw Error(Failure::output, str(folder, ": cannot be created: ", problem.message(), "; give another --output"));
  write_whole(path_, to_string(address) + "\n", false, 0600);
}

RendezvousFile::~RendezvousFile() { unlink(path_.c_str()); }

void remove_rendezvous(const std::string& folder, const std::string& job) { unlink(path_of(folder, job).c_str()); }

std::optional<ChannelAddress> read_rendezvous(const std::string& folder, const std::string& job) {
  const std::string path = path_of(folder, job);
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    throw Error(Failure::refused,
                str(path, ": belongs to another user, or others can read it; remove it and start again"));
  return channel_address(line);
}

std::string data_address(const std::string& configured, const std::string& channel_host) {
  if (!configured.empty()) return configured;
  return channel_host.rfind("127.", 0) == 0 || channel_host == "::1" ? channel_host : "";
}

std::string serving_address(const std::string& configured, const LaunchedAs& as) {
  if (!configured.empty()) return configured;
  if (as.local_size == as.size) return "127.0.0.1";
  const std::string own = first_address();
  return own.empty() ? "127.0.0.1" : own;
}

}  // namespace convoy
