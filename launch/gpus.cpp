#include "launch/gpus.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/text.h"
#include "launch/nvml.h"

namespace convoy {
namespace {

// "00000000:3B:00.0" as NVML writes it, "0000:3b:00.0" as the kernel does.
std::string kernel_address(std::string nvml) {
  if (nvml.size() > 12) nvml = nvml.substr(nvml.size() - 12);
  std::transform(nvml.begin(), nvml.end(), nvml.begin(), [](unsigned char c) { return std::tolower(c); });
  return nvml;
}

int numa_node(const std::string& pci) {
  std::ifstream file(str("/sys/bus/pci/devices/", pci, "/numa_node"));
  int node = -1;  // also where there is only one
  return file >> node ? node : -1;
}

}  // namespace

std::vector<Gpu> find_gpus() {
  std::vector<Gpu> gpus;
  const Nvml nvml;
  unsigned count = 0;
  if (!nvml.ready() || nvml.count(&count) != 0) return gpus;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    NvmlPci pci{};
    NvmlMemory memory{};
    char uuid[96] = "";
    if (nvml.handle(i, &device) != 0 || nvml.uuid(device, uuid, sizeof uuid) != 0 || nvml.pci(device, &pci) != 0 ||
        nvml.memory(device, &memory) != 0)
      continue;  // fallen off the bus
    Gpu gpu;
    gpu.index = static_cast<int>(gpus.size());
    gpu.uuid = uuid;
    gpu.pci = kernel_address(pci.bus_id);
    gpu.numa = numa_node(gpu.pci);
    gpu.memory = static_cast<int64_t>(memory.total);
    gpus.push_back(gpu);
  }
  return gpus;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus, const char* visible_devices) {
  if (visible_devices == nullptr) return gpus;
  std::vector<Gpu> visible;
  std::istringstream list(visible_devices);
  for (std::string word; std::getline(list, word, ',');) {
    word.erase(std::remove_if(word.begin(), word.end(), [](unsigned char c) { return std::isspace(c); }), word.end());
    char* end = nullptr;
    const long index = std::strtol(word.c_str(), &end, 10);
    const bool number = !word.empty() && *end == '\0';
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return number ? gpu.index == index : !word.empty() && gpu.uuid.rfind(word, 0) == 0;
    });
    if (found == gpus.end()) break;
    visible.push_back(*found);
    visible.back().index = static_cast<int>(visible.size()) - 1;
  }
  return visible;
}

}  // namespace convoy
