#include "launch/placement.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"

namespace convoy {
namespace {

// Cores as far as `units` allow them; empty: all.
std::vector<Core> restricted(const std::vector<Core>& cores, const std::vector<int>& units) {
  if (units.empty()) return cores;
  const std::set<int> allowed(units.begin(), units.end());
  std::vector<Core> result;
  for (Core core : cores) {
    auto gone = [&](int unit) { return allowed.count(unit) == 0; };
    core.siblings.erase(std::remove_if(core.siblings.begin(), core.siblings.end(), gone), core.siblings.end());
    if (core.siblings.empty()) continue;
    core.id = core.siblings.front();
    result.push_back(core);
  }
  return result;
}

std::vector<int> units_of(const std::vector<Core>& cores) {
  std::vector<int> units;
  for (const Core& core : cores) units.insert(units.end(), core.siblings.begin(), core.siblings.end());
  std::sort(units.begin(), units.end());
  return units;
}

// One processing unit as a core of its own.
std::vector<Core> split_units(const std::vector<Core>& cores) {
  std::vector<Core> units;
  for (const Core& core : cores)
    for (int unit : core.siblings) units.push_back({unit, core.numa, core.socket, {unit}});
  return units;
}

int preferred_numa(const RankPlan& rank, const Host& host) {
  for (const DevicePlan& device : rank.devices)
    if (device.kind == DevicePlan::Kind::gpu && device.gpu >= 0 && device.gpu < static_cast<int>(host.gpus.size()))
      return host.gpus[static_cast<size_t>(device.gpu)].numa;
  return -1;
}

// Takes `count` of `free`, those near the rank's GPU first.
std::vector<Core> take(std::vector<Core>& free, size_t count, int numa) {
  std::stable_partition(free.begin(), free.end(), [numa](const Core& core) { return numa >= 0 && core.numa == numa; });
  std::vector<Core> taken(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(count));
  free.erase(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(count));
  return taken;
}

// What binding widens a rank's cores to.
std::vector<int> bound_units(const std::vector<Core>& taken, const std::vector<Core>& all, const std::string& bind) {
  if (bind == "none") return {};
  if (bind != "numa" && bind != "socket") return units_of(taken);
  std::vector<Core> wide;
  for (const Core& core : all)
    if (std::any_of(taken.begin(), taken.end(), [&](const Core& mine) {
          return bind == "numa" ? mine.numa == core.numa : mine.socket == core.socket;
        }))
      wide.push_back(core);
  return units_of(wide);
}

// A rank's cores go round its core devices; a rank with fewer cores than devices lets them share.
void divide_between_devices(RankPlan& rank) {
  std::vector<DevicePlan*> devices;
  for (DevicePlan& device : rank.devices)
    if (device.kind == DevicePlan::Kind::cores && device.cores.empty()) devices.push_back(&device);
  if (devices.empty() || rank.cores.empty()) return;
  const size_t share = rank.cores.size() / devices.size();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (share == 0) {
      devices[i]->cores = rank.cores;
      continue;
    }
    const auto begin = rank.cores.begin() + static_cast<std::ptrdiff_t>(i * share);
    devices[i]->cores.assign(begin,
                             i + 1 == devices.size() ? rank.cores.end() : begin + static_cast<std::ptrdiff_t>(share));
  }
}

// Whether several threads of the rank compute on its cores, each with helpers of its own.
bool several_core_devices(const RankPlan& rank) {
  return std::count_if(rank.devices.begin(), rank.devices.end(),
                       [](const DevicePlan& device) { return device.kind == DevicePlan::Kind::cores; }) > 1;
}

struct Division {
  std::vector<Core> free;
  size_t each = 1;
  bool shared = false;
};

// More threads than the host can run at once only wait for each other, and by the thousand they hang the start.
void check_threads(const LaunchConfig& launch, const Host& host) {
  const size_t units = units_of(host.cores).size();
  if (launch.threads > 0 && static_cast<size_t>(launch.threads) > units)
    throw ConfigError({}, "launch.threads",
                      str("is ", launch.threads, ", but this run may use ", units, " core", units == 1 ? "" : "s",
                          " on ", host.name, "; use at most as many, or launch.threads=auto"));
}

Division divide(const std::vector<Core>& cores, size_t ranks, const LaunchConfig& launch, const std::string& host) {
  const std::vector<Core> units = split_units(cores);
  Division division;
  if (launch.cores_per_rank > 0) {
    division.each = static_cast<size_t>(launch.cores_per_rank);
    if (division.each * ranks > units.size())
      throw ConfigError({}, "launch.cores_per_rank",
                        str(division.each, " × ", ranks, " ranks on ", host, " are ", division.each * ranks,
                            " cores, but this run may use ", units.size(),
                            "; use fewer ranks, or launch.cores_per_rank=auto to share"));
    division.free = division.each * ranks <= cores.size() ? cores : units;
    return division;
  }
  division.shared = ranks > units.size();
  if (division.shared) return division;
  division.free = ranks <= cores.size() ? cores : units;
  division.each = division.free.size() / ranks;
  return division;
}

}  // namespace

PlacementResult place(Job& job, const Topology& topology, const LaunchConfig& launch,
                      const std::vector<std::vector<int>>& allowed) {
  PlacementResult result;
  using Group = std::pair<int, std::vector<int>>;  // host and the units its launcher allows
  std::map<Group, std::vector<RankPlan*>> groups;
  for (RankPlan& rank : job.ranks) {
    const auto index = static_cast<size_t>(rank.rank);
    groups[{rank.host, index < allowed.size() ? allowed[index] : std::vector<int>{}}].push_back(&rank);
  }
  for (auto& [group, ranks] : groups) {
    const Host& host = topology.hosts.at(static_cast<size_t>(group.first));
    const std::vector<Core> cores = restricted(host.cores, group.second);
    check_threads(launch, host);
    Division division = divide(cores, ranks.size(), launch, host.name);
    if (division.shared) {
      result.shared = true;
      result.warnings.push_back(str(ranks.size(), " ranks share ", units_of(cores).size(), " core",
                                    units_of(cores).size() == 1 ? "" : "s", " on ", host.name,
                                    ": expect less speed; ranks wait passively"));
    }
    for (RankPlan* rank : ranks) {
      if (rank->cores.empty()) {
        const std::vector<Core> taken =
            division.shared ? cores : take(division.free, division.each, preferred_numa(*rank, host));
        rank->cores = bound_units(taken, cores, launch.bind);
        rank->threads = static_cast<int>(division.shared ? 1 : division.each);
      }
      if (launch.threads > 0) {
        if (launch.threads > rank->threads) result.shared = true;
        rank->threads = static_cast<int>(launch.threads);
      }
      divide_between_devices(*rank);
      result.shared = result.shared || several_core_devices(*rank);
    }
  }
  return result;
}

}  // namespace convoy
