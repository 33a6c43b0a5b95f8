#include "launch/topology.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/limits.h"
#include "launch/gpus.h"
#include "launch/hwloc_reading.h"

namespace convoy {
namespace {

using Handle = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Handle empty_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error(Failure::io, "topology: hwloc cannot start");
  return {raw, &hwloc_topology_destroy};
}

constexpr unsigned long little =
    HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS | HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS;

Handle discover(bool whole) {
  Handle topology = empty_topology();
  // Only what placement uses: discovery is on the way to the first step.
  hwloc_topology_set_all_types_filter(topology.get(), HWLOC_TYPE_FILTER_KEEP_NONE);
  for (hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_CORE})
    hwloc_topology_set_type_filter(topology.get(), type, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(topology.get(), little | HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                               (whole ? 0 : HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING));
  if (hwloc_topology_load(topology.get()) != 0)
    throw Error(Failure::io, "topology: hwloc cannot read this machine; does `lstopo` work here?");
  return topology;
}

// Processing units that this process is bound to.
std::set<int> mask_of(hwloc_topology_t topology) {
  std::set<int> units;
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set != nullptr && hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) == 0)
    for (int unit = hwloc_bitmap_first(set); unit != -1; unit = hwloc_bitmap_next(set, unit)) units.insert(unit);
  hwloc_bitmap_free(set);
  return units;
}

// A quota is time on any core: as many cores are taken as it pays for, those that this process is bound to first.
void limit_cores(Host& host, double quota, const std::set<int>& mask) {
  const auto allowed = static_cast<size_t>(std::max(1.0, std::ceil(quota - 1e-6)));
  if (allowed >= host.cores.size()) return;
  const std::vector<Core> in_order = host.cores;
  std::stable_partition(host.cores.begin(), host.cores.end(), [&](const Core& core) {
    return std::any_of(core.siblings.begin(), core.siblings.end(), [&](int unit) { return mask.count(unit) != 0; });
  });
  host.cores.resize(allowed);
  std::set<int> kept;
  for (const Core& core : host.cores) kept.insert(core.id);
  host.cores.clear();
  for (const Core& core : in_order)
    if (kept.count(core.id) != 0) host.cores.push_back(core);
}

void tell_mask(Host& host, const std::set<int>& mask) {
  bool all = true;
  for (const Core& core : host.cores)
    for (int unit : core.siblings) {
      if (mask.count(unit) != 0) host.bound.push_back(unit);
      all = all && mask.count(unit) != 0;
    }
  if (all) host.bound.clear();
  std::sort(host.bound.begin(), host.bound.end());
}

// NVML tells a node; the socket is that of the node's cores.
void attach_to_node(Gpu& gpu, const std::vector<Core>& cores) {
  std::vector<const Core*> near;
  for (const Core& core : cores)
    if (gpu.numa < 0 || core.numa == gpu.numa) near.push_back(&core);
  attach(gpu, near);
}

[[noreturn]] void unreadable(const std::string& path, const std::string& why) {
  throw Error(Failure::config, str("--topology ", path, ": ", why,
                                   "; make such a file on the machine it is of by `lstopo --of xml machine.xml`"));
}

std::string name_in(hwloc_topology_t topology, const std::string& path) {
  if (const char* name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), "HostName")) return name;
  return std::filesystem::path(path).stem().string();
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

Host this_host(const TopologyRequest& request) {
  Host host;
  host.name = host_name();
  const Handle topology = discover(request.whole);
  host.cores = cores_of(topology.get());
  if (host.cores.empty()) throw Error(Failure::io, "topology: hwloc finds no core that this process may use");
  const std::set<int> mask = mask_of(topology.get());
  const Limits limits = cgroup_limits();
  if (limits.cores) limit_cores(host, *limits.cores, mask);
  if (request.whole) tell_mask(host, mask);
  host.memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (limits.memory) host.memory = std::min(host.memory, *limits.memory);
  if (request.gpus) host.gpus = visible_gpus(find_gpus(), std::getenv("CUDA_VISIBLE_DEVICES"));
  for (Gpu& gpu : host.gpus) attach_to_node(gpu, host.cores);
  return host;
}

Host saved_host(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none))
    unreadable(path, std::filesystem::exists(path, none) ? "is no regular file" : "no such file");
  const Handle topology = empty_topology();
  hwloc_topology_set_flags(topology.get(), little);
  // Groups stay: a GPU may be attached to one.
  hwloc_topology_set_io_types_filter(topology.get(), HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_set_xml(topology.get(), path.c_str()) != 0 || hwloc_topology_load(topology.get()) != 0)
    unreadable(path, "hwloc cannot read it");
  Host host;
  host.name = name_in(topology.get(), path);
  host.cores = cores_of(topology.get());
  if (host.cores.empty()) unreadable(path, "it has no core that may be used");
  host.gpus = gpus_of(topology.get(), host.cores);
  host.memory = memory_of(topology.get(), host.cores);
  return host;
}

Json to_json(const Host& host) {
  Json json = {{"name", host.name},
               {"memory", host.memory},
               {"cores", Json::array()},
               {"gpus", Json::array()},
               {"bound", host.bound}};
  for (const Core& core : host.cores)
    json["cores"].push_back(
        {{"id", core.id}, {"numa", core.numa}, {"socket", core.socket}, {"siblings", core.siblings}});
  for (const Gpu& gpu : host.gpus)
    json["gpus"].push_back({{"index", gpu.index},
                            {"uuid", gpu.uuid},
                            {"pci", gpu.pci},
                            {"numa", gpu.numa},
                            {"memory", gpu.memory},
                            {"socket", gpu.socket}});
  return json;
}

Host host_from_json(const Json& json) {
  Host host;
  host.name = json.at("name").get<std::string>();
  host.memory = json.at("memory").get<int64_t>();
  for (const Json& item : json.at("cores"))
    host.cores.push_back({item.at("id").get<int>(), item.at("numa").get<int>(), item.at("socket").get<int>(),
                          item.at("siblings").get<std::vector<int>>()});
  for (const Json& item : json.at("gpus"))
    host.gpus.push_back({item.at("index").get<int>(), item.at("uuid").get<std::string>(),
                         item.at("pci").get<std::string>(), item.at("numa").get<int>(),
                         item.at("memory").get<int64_t>(), item.at("socket").get<int>()});
  host.bound = json.at("bound").get<std::vector<int>>();
  return host;
}

}  // namespace convoy
