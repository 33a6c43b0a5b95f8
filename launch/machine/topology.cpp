#include "launch/machine/topology.h"

#include <hwloc.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "core/base/error.h"
#include "core/files/limits.h"
#include "launch/machine/gpus.h"

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
  // Loads only what placement needs: discovery delays the first step.
  hwloc_topology_set_all_types_filter(topology.get(), HWLOC_TYPE_FILTER_KEEP_NONE);
  for (hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_CORE})
    hwloc_topology_set_type_filter(topology.get(), type, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(topology.get(), little | HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                               (whole ? 0 : HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING));
  if (hwloc_topology_load(topology.get()) != 0)
    throw Error(Failure::io, "topology: hwloc cannot read this machine; does `lstopo` work here?");
  return topology;
}

std::vector<int> threads_in(hwloc_const_bitmap_t set) {
  std::vector<int> threads;
  for (int thread = hwloc_bitmap_first(set); thread != -1; thread = hwloc_bitmap_next(set, thread))
    threads.push_back(thread);
  return threads;
}

// Hardware threads that this process is bound to.
std::set<int> mask_of(hwloc_topology_t topology) {
  std::vector<int> threads;
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set != nullptr && hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) == 0) threads = threads_in(set);
  hwloc_bitmap_free(set);
  return {threads.begin(), threads.end()};
}

// A quota limits time on any core: takes as many cores as it allows, first those that this process is bound to.
void limit_cores(Host& host, double quota, const std::set<int>& mask) {
  const auto allowed = static_cast<size_t>(std::max(1.0, std::ceil(quota - 1e-6)));
  if (allowed >= host.cores.size()) return;
  const std::vector<Core> in_order = host.cores;
  std::stable_partition(host.cores.begin(), host.cores.end(), [&](const Core& core) {
    return std::any_of(core.siblings.begin(), core.siblings.end(), [&](int thread) { return mask.count(thread) != 0; });
  });
  host.cores.resize(allowed);
  std::set<int> kept;
  for (const Core& core : host.cores) kept.insert(core.id);
  host.cores.clear();
  for (const Core& core : in_order)
    if (kept.count(core.id) != 0) host.cores.push_back(core);
}

void set_bound(Host& host, const std::set<int>& mask) {
  bool all = true;
  for (const Core& core : host.cores)
    for (int thread : core.siblings) {
      if (mask.count(thread) != 0) host.bound.push_back(thread);
      all = all && mask.count(thread) != 0;
    }
  if (all) host.bound.clear();
  std::sort(host.bound.begin(), host.bound.end());
}

constexpr unsigned nvidia = 0x10de;
constexpr unsigned display_class = 0x03;  // VGA and 3D controllers

int socket_of(hwloc_obj_t object) {
  for (; object != nullptr; object = object->parent)
    if (object->type == HWLOC_OBJ_PACKAGE) return static_cast<int>(object->logical_index);
  return 0;
}

// NUMA node of an object: the near node with the fewest hardware threads. hwloc also reports memory without cores, such
// as a GPU's, as a node near all of them.
int node_of(hwloc_topology_t topology, hwloc_obj_t object) {
  int nearest = 0, fewest = -1;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (object->nodeset == nullptr || !hwloc_bitmap_isset(object->nodeset, node->os_index)) continue;
    const int threads = hwloc_bitmap_weight(node->cpuset);
    if (threads <= 0 || (fewest > 0 && threads >= fewest)) continue;
    fewest = threads;
    nearest = static_cast<int>(node->os_index);
  }
  return nearest;
}

Core core_from(hwloc_topology_t topology, hwloc_obj_t object) {
  Core core;
  core.siblings = threads_in(object->cpuset);
  core.id = core.siblings.empty() ? static_cast<int>(object->os_index) : core.siblings.front();
  core.numa = node_of(topology, object);
  core.socket = socket_of(object);
  return core;
}

// Value of an attribute in the operating system's view of the device, or null.
const char* attribute_of(hwloc_obj_t device, const char* name) {
  for (hwloc_obj_t child = device->io_first_child; child != nullptr; child = child->next_sibling)
    if (const char* value = hwloc_obj_get_info_by_name(child, name)) return value;
  return nullptr;
}

bool is_gpu(hwloc_obj_t device) {
  const auto& pci = device->attr->pcidev;
  return pci.vendor_id == nvidia && pci.class_id >> 8 == display_class;
}

std::string address_of(hwloc_obj_t device) {
  const auto& pci = device->attr->pcidev;
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%01x", static_cast<unsigned>(pci.domain), pci.bus, pci.dev,
                pci.func);
  return text;
}

std::vector<Core> near(const std::vector<Core>& cores, hwloc_obj_t object) {
  std::vector<Core> found;
  for (const Core& core : cores)
    if (object != nullptr && object->cpuset != nullptr &&
        hwloc_bitmap_isset(object->cpuset, static_cast<unsigned>(core.id)))
      found.push_back(core);
  return found;
}

// Allowed cores in the order of sockets, NUMA nodes, cores; hardware threads if the topology has no cores.
std::vector<Core> cores_of(hwloc_topology_t topology) {
  std::vector<Core> cores;
  // Some virtual machines report hardware threads only, without cores.
  hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;)
    cores.push_back(core_from(topology, object));
  return cores;
}

// Sets numa and socket to those of `near` if they are unique.
void attach(Gpu& gpu, const std::vector<Core>& near) {
  const std::vector<int> nodes = distinct(near, &Core::numa), sockets = distinct(near, &Core::socket);
  gpu.numa = nodes.size() == 1 ? nodes.front() : -1;
  gpu.socket = sockets.size() == 1 ? sockets.front() : -1;
}

// NVIDIA's GPUs among the PCI devices, by address, with UUID and memory from NVML or CUDA objects. The topology must
// contain I/O objects.
std::vector<Gpu> gpus_of(hwloc_topology_t topology, const std::vector<Core>& cores) {
  std::vector<Gpu> gpus;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    if (!is_gpu(device)) continue;
    Gpu gpu;
    gpu.pci = address_of(device);
    if (const char* uuid = attribute_of(device, "NVIDIAUUID")) gpu.uuid = uuid;
    if (const char* memory = attribute_of(device, "CUDAGlobalMemorySize")) gpu.memory = std::atoll(memory) * 1024;
    attach(gpu, near(cores, hwloc_get_non_io_ancestor_obj(topology, device)));
    gpus.push_back(gpu);
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.pci < b.pci; });
  for (size_t i = 0; i < gpus.size(); ++i) gpus[i].index = static_cast<int>(i);
  return gpus;
}

// Memory of the NUMA nodes of `cores`.
int64_t memory_of(hwloc_topology_t topology, const std::vector<Core>& cores) {
  const std::vector<int> nodes = distinct(cores, &Core::numa);
  int64_t bytes = 0;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    if (std::binary_search(nodes.begin(), nodes.end(), static_cast<int>(node->os_index)))
      bytes += static_cast<int64_t>(node->attr->numanode.local_memory);
  return bytes;
}

// NVML gives the node; the socket is that of the node's cores.
void attach_to_node(Gpu& gpu, const std::vector<Core>& cores) {
  std::vector<Core> near;
  for (const Core& core : cores)
    if (gpu.numa < 0 || core.numa == gpu.numa) near.push_back(core);
  attach(gpu, near);
}

[[noreturn]] void unreadable(const std::string& path, const std::string& why) {
  throw Error(Failure::config, "--topology ", path, ": ", why,
              "; make the file with `lstopo --of xml machine.xml` on the machine that it describes");
}

std::string name_in(hwloc_topology_t topology, const std::string& path) {
  if (const char* name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), "HostName")) return name;
  return std::filesystem::path(path).stem().string();
}

int distance(const Core& core, const Affinity& near) {
  if (near.numa >= 0 && core.numa == near.numa) return 0;
  if (near.socket >= 0 && core.socket == near.socket) return 1;
  return 2;
}

// The nearest of `domains` with at least `count` cores; null if there is none.
const std::vector<Core>* nearest_with(const std::vector<std::vector<Core>>& domains, size_t count,
                                      const Affinity& near) {
  const std::vector<Core>* best = nullptr;
  for (const std::vector<Core>& domain : domains)
    if (domain.size() >= count && (best == nullptr || distance(domain.front(), near) < distance(best->front(), near)))
      best = &domain;
  return best;
}

// Smallest number of cores per rank over the nodes or sockets that ranks prefer; `limit` if none is preferred.
size_t least_near(const std::vector<Core>& cores, int Core::*location, const std::vector<Affinity>& ranks,
                  int Affinity::*preferred, size_t limit) {
  for (const std::vector<Core>& domain : grouped(cores, location)) {
    const auto wanted = static_cast<size_t>(std::count_if(
        ranks.begin(), ranks.end(), [&](const Affinity& near) { return near.*preferred == domain.front().*location; }));
    if (wanted > 0 && domain.size() >= wanted) limit = std::min(limit, domain.size() / wanted);
  }
  return limit;
}

}  // namespace

Host this_host(const TopologyRequest& request) {
  Host host;
  host.name = host_name();
  const Handle topology = discover(request.whole);
  host.cores = cores_of(topology.get());
  if (host.cores.empty()) throw Error(Failure::io, "topology: hwloc finds no core that this process may use");
  const std::set<int> mask = mask_of(topology.get());
  const Limits limits = cgroup_limits();
  if (limits.cores) limit_cores(host, *limits.cores, mask);
  if (request.whole) set_bound(host, mask);
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
  // Keeps groups: a GPU may be attached to one.
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

std::vector<Core> restricted(const std::vector<Core>& cores, const std::vector<int>& threads) {
  if (threads.empty()) return cores;
  const std::set<int> allowed(threads.begin(), threads.end());
  std::vector<Core> result;
  for (Core core : cores) {
    auto gone = [&](int thread) { return allowed.count(thread) == 0; };
    core.siblings.erase(std::remove_if(core.siblings.begin(), core.siblings.end(), gone), core.siblings.end());
    if (core.siblings.empty()) continue;
    core.id = core.siblings.front();
    result.push_back(core);
  }
  return result;
}

std::vector<int> hardware_threads_of(const std::vector<Core>& cores) {
  std::vector<int> threads;
  for (const Core& core : cores) threads.insert(threads.end(), core.siblings.begin(), core.siblings.end());
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::vector<Core> split_hardware_threads(const std::vector<Core>& cores) {
  std::vector<Core> threads;
  for (const Core& core : cores)
    for (int thread : core.siblings) threads.push_back({thread, core.numa, core.socket, {thread}});
  return threads;
}

std::vector<int> distinct(const std::vector<Core>& cores, int Core::*location) {
  std::set<int> numbers;
  for (const Core& core : cores) numbers.insert(core.*location);
  return {numbers.begin(), numbers.end()};
}

std::vector<std::vector<Core>> grouped(const std::vector<Core>& cores, int Core::*location) {
  std::map<int, std::vector<Core>> groups;
  for (const Core& core : cores) groups[core.*location].push_back(core);
  std::vector<std::vector<Core>> in_order;
  for (auto& [number, group] : groups) in_order.push_back(std::move(group));
  return in_order;
}

CorePool::CorePool(std::vector<Core> cores) : free_(std::move(cores)) {
  std::stable_sort(free_.begin(), free_.end(), [](const Core& a, const Core& b) {
    return std::tie(a.socket, a.numa) < std::tie(b.socket, b.numa);
  });
}

std::vector<Core> CorePool::take(size_t count, const Affinity& near) {
  CONVOY_CHECK(count <= free_.size(), count, " cores of ", free_.size());
  const auto nodes = grouped(free_, &Core::numa), sockets = grouped(free_, &Core::socket);
  const std::vector<Core>* domain = nearest_with(nodes, count, near);
  if (domain == nullptr) domain = nearest_with(sockets, count, near);
  std::vector<Core> taken = domain == nullptr ? free_ : *domain;
  std::stable_sort(taken.begin(), taken.end(),
                   [&](const Core& a, const Core& b) { return distance(a, near) < distance(b, near); });
  taken.resize(count);
  const auto is_taken = [&](const Core& core) {
    return std::any_of(taken.begin(), taken.end(), [&](const Core& mine) { return mine.id == core.id; });
  };
  free_.erase(std::remove_if(free_.begin(), free_.end(), is_taken), free_.end());
  return taken;
}

size_t even_share(const std::vector<Core>& cores, const std::vector<Affinity>& ranks) {
  if (ranks.empty()) return cores.size();
  const size_t even = cores.size() / ranks.size();
  if (even == 0) return 0;
  if (std::any_of(ranks.begin(), ranks.end(), prefers_location)) {
    const size_t in_node = least_near(cores, &Core::numa, ranks, &Affinity::numa, even);
    return least_near(cores, &Core::socket, ranks, &Affinity::socket, in_node);
  }
  const auto fitting = [nodes = grouped(cores, &Core::numa)](size_t each) {
    size_t ranks = 0;
    for (const std::vector<Core>& node : nodes) ranks += node.size() / each;
    return ranks;
  };
  for (size_t each = even; 4 * each >= 3 * even; --each)
    if (fitting(each) >= ranks.size()) return each;
  return even;
}

}  // namespace convoy
