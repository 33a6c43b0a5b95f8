#include "launch/machine/host_lists.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"

namespace convoy {
namespace {

[[noreturn]] void refuse(const std::string& item, const std::string& why) {
  throw Error(Failure::command_line, "--hosts: '", item, "' ", why,
              "; write --hosts node1,node2 or --hosts node1:4,node2:4");
}

HostShare share_of(const std::string& item) {
  HostShare share;
  std::string count;
  if (!item.empty() && item.front() == '[') {
    const size_t close = item.find(']');
    if (close == std::string::npos || (close + 1 < item.size() && item[close + 1] != ':'))
      refuse(item, "has a [ without ]");
    share.name = item.substr(1, close - 1);
    count = item.substr(close + 1);
  } else {
    const size_t colon = item.find(':');
    share.name = item.substr(0, colon);
    count = colon == std::string::npos ? "" : item.substr(colon);
  }
  if (share.name.empty()) refuse(item, "names no host");
  if (share.name.front() == '-') refuse(item, "begins with -, like an option");
  for (const char c : share.name)
    if (static_cast<unsigned char>(c) <= ' ' || c == 127 || c == '/')
      refuse(item, "has a character that host names do not have");
  if (count.empty()) return share;
  count.erase(0, 1);
  if (count.empty() || count.size() > 6 || count.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(count) == 0)
    refuse(item, "has no number of ranks after its ':'");
  share.ranks = std::stoi(count);
  return share;
}

// In single quotes every POSIX shell, csh and fish keep characters unchanged; a quote itself must be outside of them.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) {
    if (c == '\n' || c == '\r' || c == '\\' || c == '!')
      throw Error(Failure::config, "--hosts: ", word.substr(0, 200), ": shells do not agree how to read ",
                  c == '\\' || c == '!' ? str("'", c, "'") : "a line break",
                  "; move convoy and the working folder to paths without it");
    text += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return text + "'";
}

}  // namespace

std::vector<std::string> hosts_in_list(const std::string& list) {
  std::vector<std::string> hosts;
  for (size_t at = 0; at < list.size();) {
    const size_t open = list.find('[', at), comma = list.find(',', at);
    if (open == std::string::npos || comma < open) {
      hosts.push_back(list.substr(at, comma - at));
      at = comma == std::string::npos ? list.size() : comma + 1;
      continue;
    }
    const size_t close = std::min(list.find(']', open), list.size());
    const size_t end = std::min(list.find(',', close), list.size());
    const std::string before = list.substr(at, open - at);
    const std::string after = close < list.size() ? list.substr(close + 1, end - close - 1) : "";
    for (const std::string& range : split(list.substr(open + 1, close - open - 1), ',')) {
      const size_t dash = range.find('-');
      const std::string first = range.substr(0, dash),
                        last = dash == std::string::npos ? first : range.substr(dash + 1);
      for (long number = std::atol(first.c_str()); number <= std::atol(last.c_str()); ++number) {
        std::string digits = std::to_string(number);
        if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
        hosts.push_back(before + digits + after);
      }
    }
    at = end + 1;
  }
  return hosts;
}

std::vector<HostShare> host_shares(const std::vector<std::string>& items) {
  std::vector<HostShare> shares;
  std::set<std::string> seen;
  for (const std::string& item : items) {
    shares.push_back(share_of(item));
    if (!seen.insert(shares.back().name).second) refuse(item, "is written twice");
  }
  const auto with_count =
      std::count_if(shares.begin(), shares.end(), [](const HostShare& share) { return share.ranks > 0; });
  if (with_count != 0 && with_count != static_cast<long>(shares.size()))
    throw Error(Failure::command_line,
                "--hosts: only some hosts have a number of ranks; write it for all, as in --hosts "
                "node1:4,node2:4, or for none and give --ranks");
  return shares;
}

std::vector<int> rank_hosts(const std::vector<HostShare>& shares, int ranks, const std::string& source) {
  std::vector<int> hosts;
  for (size_t host = 0; host < shares.size(); ++host)
    hosts.insert(hosts.end(), static_cast<size_t>(shares[host].ranks), static_cast<int>(host));
  if (ranks > 0 && !hosts.empty() && static_cast<int>(hosts.size()) != ranks)
    throw Error(failure_of_source(source), source, ": ", counted(hosts.size(), "rank"),
                " in all, which conflicts with --ranks (launch.ranks) = ", ranks, "; leave one of them out");
  return hosts;
}

std::vector<std::string> remote_command(const std::vector<std::string>& remote_shell, const std::string& host,
                                        const std::vector<std::string>& words) {
  std::vector<std::string> line = remote_shell;
  line.push_back(host);
  std::string command = "exec";
  for (const std::string& word : words) command += " " + quoted(word);
  line.push_back(command);
  return line;
}

}  // namespace convoy
