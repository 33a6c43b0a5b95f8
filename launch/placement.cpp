#include "launch/placement.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "launch/core_pool.h"

namespace convoy {
namespace {

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

// More threads than the host can run at once only wait for each other, and by the thousand they hang the start.
void check_threads(const LaunchConfig& launch, const Host& host) {
  const size_t units = units_of(host.cores).size();
  if (launch.threads > 0 && static_cast<size_t>(launch.threads) > units)
    throw ConfigError({}, "launch.threads",
                      str("is ", launch.threads, ", but this run may use ", units, " core", units == 1 ? "" : "s",
                          " on ", host.name, "; use at most as many, or launch.threads=auto"));
}

// How the ranks of one group divide its cores.
struct Division {
  CorePool pool;
  size_t each = 1;
  bool shared = false;  // all share all
};

// Of more ranks than cores each gets one: as many cores are split into their hyper-threads as it takes, the others stay
// whole.
std::vector<Core> split_for(const std::vector<Core>& cores, size_t ranks) {
  std::vector<Core> split;
  size_t missing = ranks - cores.size();
  for (const Core& core : cores) {
    const std::vector<Core> parts = missing > 0 ? split_units({core}) : std::vector<Core>{core};
    missing -= std::min(missing, parts.size() - 1);
    split.insert(split.end(), parts.begin(), parts.end());
  }
  return split;
}

// Whether somebody else may have the other hyper-threads.
bool are_threads(const std::vector<Core>& taken, const std::vector<Core>& cores) {
  const Core& first = taken.front();
  return std::any_of(cores.begin(), cores.end(), [&](const Core& core) {
    return std::count(core.siblings.begin(), core.siblings.end(), first.id) > 0 &&
           core.siblings.size() > first.siblings.size();
  });
}

Division divide(const std::vector<Core>& cores, const std::vector<Nearness>& ranks, const LaunchConfig& launch,
                const std::string& host) {
  const std::vector<Core> units = split_units(cores);
  Division division;
  if (launch.cores_per_rank > 0) {
    division.each = static_cast<size_t>(launch.cores_per_rank);
    const size_t wanted = division.each * ranks.size();
    if (wanted > units.size())
      throw ConfigError(
          {}, "launch.cores_per_rank",
          str(division.each, " × ", ranks.size(), " ranks on ", host, " are ", wanted, " cores, but this run may use ",
              units.size(), "; use fewer ranks, or launch.cores_per_rank=auto to share"));
    division.pool = CorePool(wanted > cores.size() ? units : cores);
    return division;
  }
  division.shared = ranks.size() > units.size();
  if (division.shared) return division;
  if (ranks.size() > cores.size()) {
    division.pool = CorePool(split_for(cores, ranks.size()));
  } else {
    division.pool = CorePool(cores);
    division.each = even_share(cores, ranks);
  }
  return division;
}

std::string plural(size_t count, const char* what) { return str(count, " ", what, count == 1 ? "" : "s"); }

// One host's ranks that may use the same processing units.
class Group {
 public:
  Group(const Topology& topology, int host, const std::vector<int>& units, const LaunchConfig& launch,
        PlacementResult& result)
      : host_(topology.hosts.at(static_cast<size_t>(host))),
        given_(units),
        cores_(restricted(host_.cores, units)),
        launch_(launch),
        result_(result) {}

  void place(const std::vector<RankPlan*>& ranks) {
    check_threads(launch_, host_);
    std::vector<Nearness> wanted;
    for (const RankPlan* rank : ranks) wanted.push_back(nearness_of(*rank, host_));
    Division division;
    if (launch_.bind == "keep")
      division.each = std::max<size_t>(1, cores_.size() / ranks.size());
    else if (launch_.bind != "list")
      division = divide(cores_, wanted, launch_, host_.name);
    if (division.shared || (launch_.bind == "keep" && ranks.size() > 1)) shared_by(ranks.size());
    size_t position = 0;
    for (RankPlan* rank : ranks) {
      std::string why = "as the strategy's section lists them";
      if (rank->cores.empty()) why = place_one(*rank, position, division, ranks.size());
      ++position;
      finish(*rank);
      result_.table.push_back(placed_rank(*rank, host_, why));
    }
  }

 private:
  std::string place_one(RankPlan& rank, size_t position, Division& division, size_t ranks) {
    if (launch_.bind == "keep") {
      rank.cores = given_;
      rank.threads = static_cast<int>(division.each);
      return given_.empty() ? "not bound by its launcher (launch.bind: keep)" : "as its launcher bound it";
    }
    if (launch_.bind == "list") return place_listed(rank, position);
    const std::vector<Core> taken =
        division.shared ? cores_ : division.pool.take(division.each, nearness_of(rank, host_));
    rank.cores = bound_units(taken, cores_, launch_.bind);
    rank.threads = static_cast<int>(division.shared ? 1 : division.each);
    if (launch_.bind == "none") return "not bound (launch.bind: none)";
    if (division.shared) return str(ranks, " ranks share them");
    const std::string why = placement_reason(rank, host_, taken, are_threads(taken, cores_));
    return launch_.bind == "numa" || launch_.bind == "socket" ? str(why, "; bound to the whole ", launch_.bind) : why;
  }

  std::string place_listed(RankPlan& rank, size_t position) {
    if (position >= launch_.cores.size())
      throw ConfigError({}, "launch.cores",
                        str("has ", plural(launch_.cores.size(), "item"), ", and ", host_.name,
                            " has more ranks than that; add one for each, or take launch.bind=core"));
    rank.cores = units_from_text(launch_.cores[position]);
    std::sort(rank.cores.begin(), rank.cores.end());
    const std::vector<int> may = units_of(host_.cores);
    for (int unit : rank.cores) {
      if (!std::binary_search(may.begin(), may.end(), unit))
        throw ConfigError({}, str("launch.cores.", position),
                          str("names core ", unit, ", and this run may use ", units_text(may), " on ", host_.name));
      const auto [found, fresh] = owner_of_.emplace(unit, rank.rank);
      if (!fresh)
        throw ConfigError({}, str("launch.cores.", position),
                          str("gives core ", unit, " of ", host_.name, " a second time, after rank ", found->second,
                              "; ranks that are to share cores take launch.bind=none"));
    }
    rank.threads = static_cast<int>(restricted(host_.cores, rank.cores).size());
    return "launch.cores";
  }

  void finish(RankPlan& rank) {
    if (launch_.threads > 0) {
      if (launch_.threads > rank.threads) result_.shared = true;
      rank.threads = static_cast<int>(launch_.threads);
    }
    divide_between_devices(rank);
    result_.shared = result_.shared || several_core_devices(rank);
    for (DevicePlan& device : rank.devices)
      if (const Gpu* gpu = gpu_of(device, host_)) device.uuid = gpu->uuid;
  }

  void shared_by(size_t ranks) {
    result_.shared = true;
    const size_t units = units_of(cores_).size();
    if (launch_.bind == "keep" && given_.empty()) return;  // wherever the kernel puts them
    std::string warning = str(ranks, " ranks share ", plural(units, "core"), " on ", host_.name,
                              ": expect less speed; ranks wait passively");
    if (units < units_of(host_.cores).size())
      warning += str("; that is what their launcher bound them to, of ", units_of(host_.cores).size(),
                     " that the job may use: --set launch.bind=convoy divides all of them");
    result_.warnings.push_back(warning);
  }

  const Host& host_;
  const std::vector<int> given_;
  const std::vector<Core> cores_;
  const LaunchConfig& launch_;
  PlacementResult& result_;
  std::map<int, int> owner_of_;  // bind list: rank by unit
};

// Ranks of different groups on one physical core: their launcher's doing.
void warn_of_overlaps(const Job& job, const Topology& topology, const std::vector<std::vector<int>>& allowed,
                      PlacementResult& result) {
  for (size_t host = 0; host < topology.hosts.size(); ++host) {
    for (const Core& core : topology.hosts[host].cores) {
      std::map<std::vector<int>, int> groups;  // and one rank of each
      for (const RankPlan& rank : job.ranks) {
        const auto index = static_cast<size_t>(rank.rank);
        if (rank.host != static_cast<int>(host) || index >= allowed.size()) continue;
        if (!restricted({core}, rank.cores).empty() && !rank.cores.empty()) groups.emplace(allowed[index], rank.rank);
      }
      if (groups.size() < 2) continue;
      std::vector<int> ranks;
      for (const auto& [units, rank] : groups) ranks.push_back(rank);
      std::sort(ranks.begin(), ranks.end());
      result.shared = true;
      result.warnings.push_back(
          str("ranks ", ranks_text(ranks), " share core ", core.id, " of ", topology.hosts[host].name,
              ", as their launcher bound them: expect less speed; --set launch.bind=convoy divides "
              "the cores of the job among them"));
      break;  // one is enough to tell
    }
  }
}

}  // namespace

PlacementResult place(Job& job, const Topology& topology, const LaunchConfig& launch,
                      const std::vector<std::vector<int>>& allowed) {
  PlacementResult result;
  const bool anew = launch.bind == "convoy" || launch.bind == "list";  // whatever the launcher has done
  using Key = std::pair<int, std::vector<int>>;                        // host and the units its launcher allows
  std::map<Key, std::vector<RankPlan*>> groups;
  for (RankPlan& rank : job.ranks) {
    const auto index = static_cast<size_t>(rank.rank);
    groups[{rank.host, !anew && index < allowed.size() ? allowed[index] : std::vector<int>{}}].push_back(&rank);
  }
  for (auto& [key, ranks] : groups) Group(topology, key.first, key.second, launch, result).place(ranks);
  if (launch.bind == "core" || launch.bind == "keep") warn_of_overlaps(job, topology, allowed, result);
  std::sort(result.table.begin(), result.table.end(),
            [](const PlacedRank& a, const PlacedRank& b) { return a.rank < b.rank; });
  return result;
}

}  // namespace convoy
