#include "launch/machine/placement.h"

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

const Gpu* first_gpu(const RankPlan& rank, const Host& host) {
  for (const DevicePlan& device : rank.devices)
    if (const Gpu* gpu = gpu_of(device, host)) return gpu;
  return nullptr;
}

// Node and socket of the rank's first GPU. Without a GPU: no preference.
Affinity affinity_of(const RankPlan& rank, const Host& host) {
  const Gpu* gpu = first_gpu(rank, host);
  if (gpu == nullptr) return {};
  Affinity near{gpu->numa, gpu->socket};
  // A plan made by hand may give the node alone.
  for (const Core& core : host.cores)
    if (near.socket < 0 && near.numa >= 0 && core.numa == near.numa) near.socket = core.socket;
  return near;
}

// Reason for which a rank got `taken`. `hardware_threads`: these are parts of cores that other ranks share.
std::string placement_reason(const RankPlan& rank, const Host& host, const std::vector<Core>& taken,
                             bool hardware_threads) {
  const std::vector<int> nodes = distinct(taken, &Core::numa), sockets = distinct(taken, &Core::socket);
  const std::string how = hardware_threads ? "hardware threads, because there are more ranks than cores; " : "";
  const Gpu* gpu = first_gpu(rank, host);
  if (gpu != nullptr) {
    const Affinity near = affinity_of(rank, host);
    const std::string name = str("GPU ", gpu->index);
    if (!prefers_location(near)) return how + "where " + name + " is attached is not known";
    if (nodes == std::vector<int>{near.numa}) return str(how, name, " is on NUMA node ", near.numa);
    if (sockets == std::vector<int>{near.socket})
      return str(how, name, " is on socket ", near.socket,
                 near.numa < 0 ? "" : str(", and its NUMA node ", near.numa, " has too few cores left"));
    return str(how, "away from ", name, ", whose socket has too few cores left");
  }
  if (nodes.size() == 1)
    return how + (distinct(host.cores, &Core::numa).size() == 1 ? "the host has one NUMA node" : "in one NUMA node");
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
  const std::vector<Core> used = restricted(host.cores, rank.cores);
  row.numa = distinct(used, &Core::numa);
  row.sockets = distinct(used, &Core::socket);
  row.cores = rank.cores;
  row.threads = rank.threads;
  row.why = why;
  return row;
}

// Hardware threads to bind a rank to: those of its cores, or of their whole nodes or sockets.
std::vector<int> bound_threads(const std::vector<Core>& taken, const std::vector<Core>& all, const std::string& bind) {
  if (bind == "none") return {};
  if (bind != "numa" && bind != "socket") return hardware_threads_of(taken);
  std::vector<Core> wide;
  for (const Core& core : all)
    if (std::any_of(taken.begin(), taken.end(), [&](const Core& mine) {
          return bind == "numa" ? mine.numa == core.numa : mine.socket == core.socket;
        }))
      wide.push_back(core);
  return hardware_threads_of(wide);
}

// Divides a rank's cores between its core devices; devices share them if there are more devices than cores.
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

// True if several devices of the rank are sets of cores; a thread computes on each.
bool several_core_devices(const RankPlan& rank) {
  return std::count_if(rank.devices.begin(), rank.devices.end(),
                       [](const DevicePlan& device) { return device.kind == DevicePlan::Kind::cores; }) > 1;
}

// Refuses more threads than the host can run at once: they wait for each other, and thousands block the start.
void check_threads(const LaunchConfig& launch, const Host& host) {
  const size_t threads = hardware_threads_of(host.cores).size();
  if (launch.threads > 0 && static_cast<size_t>(launch.threads) > threads)
    throw ConfigError({}, "launch.threads", "is ", launch.threads, ", but this run may use ", counted(threads, "core"),
                      " on ", host.name, "; use at most as many, or launch.threads=auto");
}

// Division of a group's cores between its ranks.
struct Division {
  CorePool pool;
  size_t each = 1;
  bool shared = false;  // all ranks share all cores
};

// Returns at least `ranks` cores if possible. Splits only as many cores into hardware threads as that needs, and keeps
// the others whole.
std::vector<Core> split_for(const std::vector<Core>& cores, size_t ranks) {
  std::vector<Core> split;
  size_t missing = ranks - cores.size();
  for (const Core& core : cores) {
    const std::vector<Core> pieces = missing > 0 ? split_hardware_threads({core}) : std::vector<Core>{core};
    missing -= std::min(missing, pieces.size() - 1);
    split.insert(split.end(), pieces.begin(), pieces.end());
  }
  return split;
}

// True if other ranks may have the other hardware threads of these cores.
bool are_threads(const std::vector<Core>& taken, const std::vector<Core>& cores) {
  const Core& first = taken.front();
  return std::any_of(cores.begin(), cores.end(), [&](const Core& core) {
    return std::count(core.siblings.begin(), core.siblings.end(), first.id) > 0 &&
           core.siblings.size() > first.siblings.size();
  });
}

Division divide(const std::vector<Core>& cores, const std::vector<Affinity>& ranks, const LaunchConfig& launch,
                const std::string& host) {
  const std::vector<Core> threads = split_hardware_threads(cores);
  Division division;
  if (launch.cores_per_rank > 0) {
    division.each = static_cast<size_t>(launch.cores_per_rank);
    const size_t wanted = division.each * ranks.size();
    if (wanted > threads.size())
      throw ConfigError({}, "launch.cores_per_rank", division.each, " × ", counted(ranks.size(), "rank"), " on ", host,
                        " are ", counted(wanted, "core"), ", but this run may use ", threads.size(),
                        "; use fewer ranks, or launch.cores_per_rank=auto");
    division.pool = CorePool(wanted > cores.size() ? threads : cores);
    return division;
  }
  division.shared = ranks.size() > threads.size();
  if (division.shared) return division;
  if (ranks.size() > cores.size()) {
    division.pool = CorePool(split_for(cores, ranks.size()));
  } else {
    division.pool = CorePool(cores);
    division.each = even_share(cores, ranks);
  }
  return division;
}

// Ranks of one host that may use the same hardware threads.
class Group {
 public:
  Group(const Topology& topology, int host, const std::vector<int>& threads, const LaunchConfig& launch,
        PlacementResult& result)
      : host_(topology.hosts.at(static_cast<size_t>(host))),
        given_(threads),
        cores_(restricted(host_.cores, threads)),
        launch_(launch),
        result_(result) {}

  void place(const std::vector<RankPlan*>& ranks) {
    check_threads(launch_, host_);
    std::vector<Affinity> wanted;
    for (const RankPlan* rank : ranks) wanted.push_back(affinity_of(*rank, host_));
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
        division.shared ? cores_ : division.pool.take(division.each, affinity_of(rank, host_));
    rank.cores = bound_threads(taken, cores_, launch_.bind);
    rank.threads = static_cast<int>(division.shared ? 1 : division.each);
    if (launch_.bind == "none") return "not bound (launch.bind: none)";
    if (division.shared) return str(ranks, " ranks share them");
    const std::string why = placement_reason(rank, host_, taken, are_threads(taken, cores_));
    return launch_.bind == "numa" || launch_.bind == "socket" ? str(why, "; bound to the whole ", launch_.bind) : why;
  }

  std::string place_listed(RankPlan& rank, size_t position) {
    if (position >= launch_.cores.size())
      throw ConfigError({}, "launch.cores", "has ", counted(launch_.cores.size(), "item"), ", but ", host_.name,
                        " has more ranks; write one item for each rank, or set launch.bind=core");
    rank.cores = hardware_threads_from_text(launch_.cores[position]);
    std::sort(rank.cores.begin(), rank.cores.end());
    const std::vector<int> may = hardware_threads_of(host_.cores);
    for (int thread : rank.cores) {
      if (!std::binary_search(may.begin(), may.end(), thread))
        throw ConfigError({}, str("launch.cores.", position), "names core ", thread, ", but this run may use cores ",
                          hardware_threads_text(may), " of ", host_.name);
      const auto [found, fresh] = owner_of_.emplace(thread, rank.rank);
      if (!fresh)
        throw ConfigError({}, str("launch.cores.", position), "gives core ", thread, " of ", host_.name,
                          " also to rank ", found->second, "; to let ranks share cores, set launch.bind=none");
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
    const size_t threads = hardware_threads_of(cores_).size();
    if (launch_.bind == "keep" && given_.empty()) return;  // the kernel chooses their cores
    std::string warning = str(ranks, " ranks share ", counted(threads, "core"), " on ", host_.name,
                              ": expect less speed; ranks wait passively");
    if (threads < hardware_threads_of(host_.cores).size())
      warning += str("; their launcher bound them there, but the job may use ", hardware_threads_of(host_.cores).size(),
                     " cores: --set launch.bind=convoy divides all of them");
    result_.warnings.push_back(warning);
  }

  const Host& host_;
  const std::vector<int> given_;
  const std::vector<Core> cores_;
  const LaunchConfig& launch_;
  PlacementResult& result_;
  std::map<int, int> owner_of_;  // bind list: rank by hardware thread
};

// Warns if ranks of different groups share a physical core, as their launcher bound them.
void warn_of_overlaps(const JobPlan& job, const Topology& topology, const std::vector<std::vector<int>>& allowed,
                      PlacementResult& result) {
  for (size_t host = 0; host < topology.hosts.size(); ++host) {
    for (const Core& core : topology.hosts[host].cores) {
      std::map<std::vector<int>, int> groups;  // one rank of each group
      for (const RankPlan& rank : job.ranks) {
        const auto index = static_cast<size_t>(rank.rank);
        if (rank.host != static_cast<int>(host) || index >= allowed.size()) continue;
        if (!restricted({core}, rank.cores).empty() && !rank.cores.empty()) groups.emplace(allowed[index], rank.rank);
      }
      if (groups.size() < 2) continue;
      std::vector<int> ranks;
      for (const auto& [threads, rank] : groups) ranks.push_back(rank);
      std::sort(ranks.begin(), ranks.end());
      result.shared = true;
      result.warnings.push_back(
          str("ranks ", ranks_text(ranks), " share core ", core.id, " of ", topology.hosts[host].name,
              " because their launcher bound them to it: expect less speed; --set launch.bind=convoy divides "
              "the cores of the job among them"));
      break;  // one example suffices
    }
  }
}

std::vector<std::string> cells_of(const PlacedRank& row) {
  const bool bound = !row.cores.empty();
  return {row.device, bound ? hardware_threads_text(row.numa) : "any", bound ? hardware_threads_text(row.cores) : "any",
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

const Gpu* gpu_of(const DevicePlan& device, const Host& host) {
  const bool known = device.kind == DevicePlan::Kind::gpu && device.gpu >= 0;
  return known && device.gpu < static_cast<int>(host.gpus.size()) ? &host.gpus[static_cast<size_t>(device.gpu)]
                                                                  : nullptr;
}

PlacementResult place(JobPlan& job, const Topology& topology, const LaunchConfig& launch,
                      const std::vector<std::vector<int>>& allowed) {
  PlacementResult result;
  const bool anew = launch.bind == "convoy" || launch.bind == "list";  // ignores the launcher's binding
  using Key = std::pair<int, std::vector<int>>;  // host, and the hardware threads that its launcher allows
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

Json topology_json(const Topology& topology) {
  Json hosts = Json::array();
  for (const Host& host : topology.hosts) {
    Json nodes = Json::array(), gpus = Json::array();
    for (const std::vector<Core>& socket : grouped(host.cores, &Core::socket))
      for (const std::vector<Core>& node : grouped(socket, &Core::numa))
        nodes.push_back({{"socket", node.front().socket},
                         {"numa", node.front().numa},
                         {"threads", hardware_threads_text(hardware_threads_of(node))}});
    for (const Gpu& gpu : host.gpus) gpus.push_back({{"index", gpu.index}, {"numa", gpu.numa}});
    hosts.push_back({{"host", host.name}, {"memory_bytes", host.memory}, {"nodes", nodes}, {"gpus", gpus}});
  }
  return hosts;
}

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

}  // namespace convoy
