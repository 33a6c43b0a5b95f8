#include "core/control/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/files/limits.h"

namespace convoy {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  else if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

// Network order; four or sixteen bytes, empty if the text is no address.
std::vector<unsigned char> bytes_of_address(const std::string& address) {
  std::vector<unsigned char> bytes(16);
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1)
    bytes.resize(4);
  else if (inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1)
    bytes.clear();
  return bytes;
}

int prefix_of(const sockaddr* mask) {
  const std::vector<unsigned char> bytes = bytes_of_address(numeric(mask));
  int bits = 0;
  for (unsigned char byte : bytes) bits += __builtin_popcount(byte);
  return bits;
}

// Source address for packets to `target`. Connecting a datagram socket sends nothing; the kernel only chooses a route.
std::string source_of(const sockaddr* target, socklen_t size) {
  const int fd = socket(target->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage local{};
  socklen_t local_size = sizeof local;
  std::string found;
  if (connect(fd, target, size) == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) == 0)
    found = numeric(reinterpret_cast<sockaddr*>(&local));
  close(fd);
  return found;
}

bool has_address(const std::vector<Interface>& interfaces, const std::string& address) {
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const Interface& i) { return i.address == address; });
}

bool reaches(const std::vector<Interface>& other, const Interface& ours) {
  return !has_address(other, ours.address) && std::any_of(other.begin(), other.end(), [&](const Interface& theirs) {
    return !theirs.loopback && same_network(theirs.address, ours.address, ours.prefix);
  });
}

}  // namespace

std::vector<Interface> interfaces_here() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    if (is_out_of_descriptors(errno)) throw Error(Failure::io, "networks of this host: ", error_text(errno));
    return {};
  }
  std::vector<Interface> four, six;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_netmask == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr))
      continue;
    (family == AF_INET ? four : six)
        .push_back(
            {at->ifa_name, numeric(at->ifa_addr), prefix_of(at->ifa_netmask), (at->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(all);
  four.insert(four.end(), six.begin(), six.end());
  return four;
}

std::string shown(const std::vector<Interface>& interfaces) {
  std::vector<std::string> words;
  for (const Interface& i : interfaces)
    if (!i.loopback) words.push_back(str(i.name, " ", i.address, "/", i.prefix));
  return words.empty() ? "no network but its loopback" : join(words, ", ");
}

bool is_loopback(const std::string& address) { return address.rfind("127.", 0) == 0 || address == "::1"; }

bool same_network(const std::string& a, const std::string& b, int prefix) {
  const std::vector<unsigned char> left = bytes_of_address(a), right = bytes_of_address(b);
  if (left.empty() || left.size() != right.size() || prefix > static_cast<int>(left.size()) * 8) return false;
  for (int bit = 0; bit < prefix; ++bit) {
    const auto byte = static_cast<size_t>(bit / 8);
    if (((left[byte] ^ right[byte]) & (0x80 >> bit % 8)) != 0) return false;
  }
  return true;
}

std::optional<Interface> common_network(const std::vector<Interface>& here,
                                        const std::vector<std::vector<Interface>>& others) {
  for (const Interface& ours : here)
    if (!ours.loopback && std::all_of(others.begin(), others.end(),
                                      [&](const std::vector<Interface>& other) { return reaches(other, ours); }))
      return ours;
  return std::nullopt;
}

std::vector<std::string> repeated_networks(const std::vector<std::vector<Interface>>& hosts) {
  std::map<std::string, int> times;
  for (const std::vector<Interface>& host : hosts) {
    std::set<std::string> local;
    for (const Interface& i : host)
      if (!i.loopback) local.insert(str(i.address, "/", i.prefix));
    for (const std::string& network : local) ++times[network];
  }
  std::vector<std::string> repeated;
  for (const auto& [network, count] : times)
    if (count > 1) repeated.push_back(network);
  return repeated;
}

std::string address_towards(const std::string& host) {
  const Addresses found = resolve(host);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    const std::string source = source_of(at->ai_addr, at->ai_addrlen);
    if (!source.empty() && !is_loopback(source) && source != numeric(at->ai_addr)) return source;
  }
  return "";
}

std::string local_address_of(const std::string& host) {
  const std::vector<Interface> interfaces = interfaces_here();
  const Addresses found = resolve(host);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next)
    if (has_address(interfaces, numeric(at->ai_addr))) return numeric(at->ai_addr);
  return "";
}

std::vector<std::string> addresses_of(const std::string& host) {
  std::vector<std::string> all;
  const Addresses found = resolve(host);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) all.push_back(numeric(at->ai_addr));
  return all;
}

bool is_here(const std::string& host) {
  const std::string local = host_name();
  return host == local || host == local.substr(0, local.find('.')) || host == "localhost" ||
         !local_address_of(host).empty();
}

std::string configured_address(const std::string& configured, const std::vector<Interface>& here) {
  const size_t slash = configured.find('/');
  if (slash == std::string::npos) return configured;
  const std::string network = configured.substr(0, slash);
  const int prefix = std::atoi(configured.c_str() + slash + 1);
  for (const Interface& i : here)
    if (same_network(i.address, network, prefix)) return i.address;
  throw Error(Failure::rendezvous, "launch.address: host ", host_name(), " has no address in ", configured, "; it has ",
              shown(here));
}

std::string data_address(const std::string& configured, const std::string& channel_host) {
  if (is_loopback(channel_host)) return channel_host;
  if (configured.find('/') != std::string::npos) return configured_address(configured, interfaces_here());
  // launch.address belongs to one host; others use their interface towards the channel.
  if (!configured.empty() && !local_address_of(configured).empty()) return configured;
  const std::string local = local_address_of(channel_host);
  return local.empty() ? address_towards(channel_host) : local;
}

}  // namespace convoy
