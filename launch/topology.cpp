#include "launch/topology.h"

#include <hwloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "core/error.h"
#include "launch/gpus.h"
#include "launch/limits.h"

namespace convoy {
namespace {

using Handle = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Handle discover() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error(Failure::io, "topology: hwloc cannot start");
  Handle topology(raw, &hwloc_topology_destroy);
  // Only what placement uses: discovery is on the way to the first step.
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_CORE})
    hwloc_topology_set_type_filter(raw, type, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM | HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING |
                                    HWLOC_TOPOLOGY_FLAG_NO_DISTANCES | HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
                                    HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS);
  if (hwloc_topology_load(raw) != 0)
    throw Error(Failure::io, "topology: hwloc cannot read this machine; does `lstopo` work here?");
  return topology;
}

int socket_of(hwloc_obj_t object) {
  for (; object != nullptr; object = object->parent)
    if (object->type == HWLOC_OBJ_PACKAGE) return static_cast<int>(object->logical_index);
  return 0;
}

Core core_from(hwloc_obj_t object) {
  Core core;
  for (int unit = hwloc_bitmap_first(object->cpuset); unit != -1; unit = hwloc_bitmap_next(object->cpuset, unit))
    core.siblings.push_back(unit);
  core.id = core.siblings.empty() ? static_cast<int>(object->os_index) : core.siblings.front();
  const int node = object->nodeset ? hwloc_bitmap_first(object->nodeset) : 0;
  core.numa = std::max(node, 0);
  core.socket = socket_of(object);
  return core;
}

std::vector<Core> cores_of(hwloc_topology_t topology) {
  std::vector<Core> cores;
  // Some virtual machines tell no cores, only processing units.
  hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;)
    cores.push_back(core_from(object));
  return cores;
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
  const Handle topology = discover();
  host.cores = cores_of(topology.get());
  if (host.cores.empty()) throw Error(Failure::io, "topology: hwloc finds no core that this process may use");
  const Limits limits = cgroup_limits();
  if (limits.cores) {
    const auto allowed = static_cast<size_t>(std::max(1.0, std::ceil(*limits.cores - 1e-6)));
    if (allowed < host.cores.size()) host.cores.resize(allowed);
  }
  host.memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (limits.memory) host.memory = std::min(host.memory, *limits.memory);
  if (request.gpus) host.gpus = visible_gpus(find_gpus(), std::getenv("CUDA_VISIBLE_DEVICES"));
  return host;
}

Json to_json(const Host& host) {
  Json json = {{"name", host.name}, {"memory", host.memory}, {"cores", Json::array()}, {"gpus", Json::array()}};
  for (const Core& core : host.cores)
    json["cores"].push_back(
        {{"id", core.id}, {"numa", core.numa}, {"socket", core.socket}, {"siblings", core.siblings}});
  for (const Gpu& gpu : host.gpus)
    json["gpus"].push_back(
        {{"index", gpu.index}, {"uuid", gpu.uuid}, {"pci", gpu.pci}, {"numa", gpu.numa}, {"memory", gpu.memory}});
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
                         item.at("memory").get<int64_t>()});
  return host;
}

}  // namespace convoy
