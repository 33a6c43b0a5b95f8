#include "launch/placement_table.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/text.h"
#include "core/units.h"
#include "launch/text_table.h"

namespace convoy {
namespace {

const Gpu* first_gpu(const RankPlan& rank, const Host& host) {
  for (const DevicePlan& device : rank.devices)
    if (const Gpu* gpu = gpu_of(device, host)) return gpu;
  return nullptr;
}

std::vector<int> nodes_of(const std::vector<Core>& cores) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.numa);
  return {nodes.begin(), nodes.end()};
}

std::vector<int> sockets_of(const std::vector<Core>& cores) {
  std::set<int> sockets;
  for (const Core& core : cores) sockets.insert(core.socket);
  return {sockets.begin(), sockets.end()};
}

}  // namespace

const Gpu* gpu_of(const DevicePlan& device, const Host& host) {
  const bool known = device.kind == DevicePlan::Kind::gpu && device.gpu >= 0;
  return known && device.gpu < static_cast<int>(host.gpus.size()) ? &host.gpus[static_cast<size_t>(device.gpu)]
                                                                  : nullptr;
}

Nearness nearness_of(const RankPlan& rank, const Host& host) {
  const Gpu* gpu = first_gpu(rank, host);
  if (gpu == nullptr) return {};
  Nearness near{gpu->numa, gpu->socket};
  // A plan made by hand tells the node alone.
  for (const Core& core : host.cores)
    if (near.socket < 0 && near.numa >= 0 && core.numa == near.numa) near.socket = core.socket;
  return near;
}

std::string placement_reason(const RankPlan& rank, const Host& host, const std::vector<Core>& taken,
                             bool hyper_threads) {
  const std::vector<int> nodes = nodes_of(taken), sockets = sockets_of(taken);
  const std::string how = hyper_threads ? "hyper-threads, as there are more ranks than cores; " : "";
  const Gpu* gpu = first_gpu(rank, host);
  if (gpu != nullptr) {
    const Nearness near = nearness_of(rank, host);
    const std::string name = str("GPU ", gpu->index);
    if (!wants_a_place(near)) return how + "where " + name + " is attached is not known";
    if (nodes == std::vector<int>{near.numa}) return str(how, name, " is on NUMA node ", near.numa);
    if (sockets == std::vector<int>{near.socket})
      return str(how, name, " is on socket ", near.socket,
                 near.numa < 0 ? "" : str(", and its NUMA node ", near.numa, " has too few cores left"));
    return str(how, "away from ", name, ", whose socket has too few cores left");
  }
  if (nodes.size() == 1)
    return how + (by_numa(host.cores).size() == 1 ? "the host has one NUMA node" : "in one NUMA node");
  return str(how, "no NUMA node has ", taken.size(), " free cores");
}

PlacedRank placed_rank(const RankPlan& rank, const Host& host, const std::string& why) {
  PlacedRank row;
  row.rank = rank.rank;
  row.host = host.name;
  std::vector<std::string> gpus;
  for (const DevicePlan& device : rank.devices)
    if (const Gpu* gpu = gpu_of(device, host)) gpus.push_back(str("GPU ", gpu->index));
  row.device = gpus.empty() ? "cores" : join(gpus, ", ");
  if (gpus.size() == 1) {
    const Gpu& gpu = *first_gpu(rank, host);
    const std::string& id = gpu.uuid.empty() ? gpu.pci : gpu.uuid.substr(0, 12);
    if (!id.empty()) row.device += " " + id;
  }
  const std::vector<Core> own = restricted(host.cores, rank.cores);
  row.numa = nodes_of(own);
  row.sockets = sockets_of(own);
  row.cores = rank.cores;
  row.threads = rank.threads;
  row.why = why;
  return row;
}

namespace {

std::vector<std::string> cells_of(const PlacedRank& row) {
  const bool bound = !row.cores.empty();
  return {row.device, bound ? units_text(row.numa) : "any", bound ? units_text(row.cores) : "any",
          std::to_string(row.threads), row.why};
}

// Ranks with equal placement, on any hosts.
struct PlacementGroup {
  std::vector<std::string> cells;
  std::vector<int> ranks;
  std::vector<std::string> hosts;
};

std::vector<PlacementGroup> placement_groups(const std::vector<PlacedRank>& table) {
  std::vector<PlacementGroup> groups;
  std::map<std::vector<std::string>, size_t> known;
  for (const PlacedRank& row : table) {
    const auto [found, fresh] = known.emplace(cells_of(row), groups.size());
    if (fresh) groups.push_back({found->first, {}, {}});
    PlacementGroup& group = groups[found->second];
    group.ranks.push_back(row.rank);
    if (group.hosts.empty() || group.hosts.back() != row.host) group.hosts.push_back(row.host);
  }
  return groups;
}

}  // namespace

std::string placement_text(const std::vector<PlacedRank>& table, size_t most) {
  std::vector<std::vector<std::string>> lines{{"rank", "host", "device", "NUMA", "cores", "threads", "why"}};
  const auto add = [&](const std::string& rank, const std::string& host, const std::vector<std::string>& cells) {
    lines.push_back({rank, host});
    lines.back().insert(lines.back().end(), cells.begin(), cells.end());
  };
  if (table.size() <= most) {
    for (const PlacedRank& row : table) add(std::to_string(row.rank), row.host, cells_of(row));
    return text_table(lines, {5});
  }
  const std::vector<PlacementGroup> groups = placement_groups(table);
  size_t left_out = 0;
  for (const PlacementGroup& group : groups) {
    if (lines.size() > most)
      left_out += group.ranks.size();
    else
      add(ranks_text(group.ranks), names_text(group.hosts), group.cells);
  }
  return text_table(lines, {5}) + (left_out > 0 ? str("… and ", left_out, " more\n") : "");
}

Json to_json(const std::vector<PlacedRank>& table) {
  Json rows = Json::array();
  for (const PlacedRank& row : table)
    rows.push_back({{"rank", row.rank},
                    {"host", row.host},
                    {"device", row.device},
                    {"numa", row.numa},
                    {"sockets", row.sockets},
                    {"cores", row.cores},
                    {"threads", row.threads},
                    {"why", row.why}});
  return rows;
}

}  // namespace convoy
