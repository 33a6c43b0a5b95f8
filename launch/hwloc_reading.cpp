#include "launch/hwloc_reading.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

namespace convoy {
namespace {

constexpr unsigned nvidia = 0x10de;
constexpr unsigned display_class = 0x03;  // VGA and 3D controllers

int socket_of(hwloc_obj_t object) {
  for (; object != nullptr; object = object->parent)
    if (object->type == HWLOC_OBJ_PACKAGE) return static_cast<int>(object->logical_index);
  return 0;
}

// Memory that is not next to any cores, such as a GPU's own, may be a node too: for hwloc it is as near to all of them. The
// node of an object is the one that the fewest processing units are near.
int node_of(hwloc_topology_t topology, hwloc_obj_t object) {
  int nearest = 0, fewest = -1;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    if (object->nodeset == nullptr || !hwloc_bitmap_isset(object->nodeset, node->os_index)) continue;
    const int units = hwloc_bitmap_weight(node->cpuset);
    if (units <= 0 || (fewest > 0 && units >= fewest)) continue;
    fewest = units;
    nearest = static_cast<int>(node->os_index);
  }
  return nearest;
}

Core core_from(hwloc_topology_t topology, hwloc_obj_t object) {
  Core core;
  for (int unit = hwloc_bitmap_first(object->cpuset); unit != -1; unit = hwloc_bitmap_next(object->cpuset, unit))
    core.siblings.push_back(unit);
  core.id = core.siblings.empty() ? static_cast<int>(object->os_index) : core.siblings.front();
  core.numa = node_of(topology, object);
  core.socket = socket_of(object);
  return core;
}

// Of the device's software side, where that was seen.
const char* told(hwloc_obj_t device, const char* name) {
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

std::vector<const Core*> near(const std::vector<Core>& cores, hwloc_obj_t object) {
  std::vector<const Core*> found;
  for (const Core& core : cores)
    if (object != nullptr && object->cpuset != nullptr &&
        hwloc_bitmap_isset(object->cpuset, static_cast<unsigned>(core.id)))
      found.push_back(&core);
  return found;
}

}  // namespace

std::vector<Core> cores_of(hwloc_topology_t topology) {
  std::vector<Core> cores;
  // Some virtual machines tell no cores, only processing units.
  hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr;)
    cores.push_back(core_from(topology, object));
  return cores;
}

std::vector<Gpu> gpus_of(hwloc_topology_t topology, const std::vector<Core>& cores) {
  std::vector<Gpu> gpus;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    if (!is_gpu(device)) continue;
    Gpu gpu;
    gpu.pci = address_of(device);
    if (const char* uuid = told(device, "NVIDIAUUID")) gpu.uuid = uuid;
    if (const char* memory = told(device, "CUDAGlobalMemorySize")) gpu.memory = std::atoll(memory) * 1024;
    attach(gpu, near(cores, hwloc_get_non_io_ancestor_obj(topology, device)));
    gpus.push_back(gpu);
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.pci < b.pci; });
  for (size_t i = 0; i < gpus.size(); ++i) gpus[i].index = static_cast<int>(i);
  return gpus;
}

void attach(Gpu& gpu, const std::vector<const Core*>& near) {
  std::set<int> nodes, sockets;
  for (const Core* core : near) {
    nodes.insert(core->numa);
    sockets.insert(core->socket);
  }
  gpu.numa = nodes.size() == 1 ? *nodes.begin() : -1;
  gpu.socket = sockets.size() == 1 ? *sockets.begin() : -1;
}

int64_t memory_of(hwloc_topology_t topology, const std::vector<Core>& cores) {
  std::set<int> nodes;
  for (const Core& core : cores) nodes.insert(core.numa);
  int64_t bytes = 0;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    if (nodes.count(static_cast<int>(node->os_index)) != 0)
      bytes += static_cast<int64_t>(node->attr->numanode.local_memory);
  return bytes;
}

}  // namespace convoy
