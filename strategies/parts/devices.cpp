#include "strategies/parts/devices.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>

#include "core/describe.h"

namespace convoy {
namespace {

struct DeviceName {
  bool gpu = false;
  int first = 0, last = 0;
};

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 6 && text.find_first_not_of("0123456789") == std::string::npos;
}

DeviceName parse(const Options& options, const std::string& key, const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon), rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  const size_t dash = kind == "cores" ? rest.find('-') : std::string::npos;
  const std::string first = rest.substr(0, dash), last = dash == std::string::npos ? first : rest.substr(dash + 1);
  if ((kind != "cuda" && kind != "cores") || !is_number(first) || !is_number(last))
    options.fail(key, str("is '", text, "', must be cuda:N, cores:N or cores:N-M, counted from 0"));
  const DeviceName name{kind == "cuda", std::atoi(first.c_str()), std::atoi(last.c_str())};
  if (name.last < name.first)
    options.fail(key, str("is ", text, ", which holds no core; did you mean cores:", last, "-", first, "?"));
  return name;
}

// A placement as it is written, by the model's order.
struct Written {
  size_t item;
  BlockRange blocks;
  std::string device;
  Options options;
};

std::vector<Written> written_placement(const Options& options) {
  std::vector<Written> all;
  const std::vector<Options> items = options.sections("placement");
  for (size_t i = 0; i < items.size(); ++i)
    all.push_back({i, parse_blocks(items[i], "blocks", items[i].text("blocks")), items[i].text("device"), items[i]});
  std::stable_sort(all.begin(), all.end(),
                   [](const Written& a, const Written& b) { return a.blocks.begin < b.blocks.begin; });
  return all;
}

std::string key_of_device(const Options& options, size_t index) {
  return options.is_auto("devices") ? "placement" : str("devices.", index);
}

DevicePlan cores_of(const Options& options, const std::string& key, const DeviceName& name, const Host& host,
                    std::map<int, std::string>& taken, const std::string& text) {
  DevicePlan device;
  const auto cores = static_cast<int>(host.cores.size());
  for (int core = name.first; core <= name.last; ++core) {
    if (core >= cores)
      options.fail(key, str("is ", text, ", and this run may use ", cores, cores == 1 ? " core" : " cores", " on ",
                            host.name, ", counted from 0"));
    const auto [found, fresh] = taken.emplace(core, text);
    if (!fresh) options.fail(key, str("is ", text, ", and core ", core, " is already in ", found->second));
    const std::vector<int>& units = host.cores[static_cast<size_t>(core)].siblings;
    device.cores.insert(device.cores.end(), units.begin(), units.end());
  }
  std::sort(device.cores.begin(), device.cores.end());
  return device;
}

// Shares of time, and of memory where devices have their own.
std::vector<double> placement_costs(const Description& model, bool own_memory) {
  std::vector<double> costs = block_costs(model);
  if (!own_memory) return costs;
  const double time = std::accumulate(costs.begin(), costs.end(), 0.0);
  double memory = 0;
  for (const BlockDescription& block : model.blocks) memory += static_cast<double>(block.parameters);
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i] /= std::max(time, 1.0);
    costs[i] += static_cast<double>(model.blocks[i].parameters) / std::max(memory, 1.0);
  }
  return costs;
}

}  // namespace

std::vector<Option> device_options() {
  Option devices = describe::list("devices",
                                  "of the rank: GPUs (cuda:0) or sets of cores (cores:0, cores:0-3); auto: "
                                  "those of placement, else every GPU, else two halves of the rank's cores",
                                  describe::text("", "cuda:N, cores:N or cores:N-M"), "auto");
  devices.also_auto = true;
  Option item = describe::section("", "consecutive blocks on a device",
                                  {describe::text("blocks", "their numbers, counted from 0: 4 or 0-3").must(),
                                   describe::text("device", "where they are").must()});
  Option placement = describe::list("placement",
                                    "which blocks are on which device; auto balances what blocks cost over "
                                    "the devices, in their order",
                                    item, "auto");
  placement.also_auto = true;
  return {devices, placement};
}

std::vector<std::string> device_names(const Options& options) {
  std::vector<std::string> names;
  if (!options.is_auto("devices")) {
    names = options.texts("devices");
    if (names.empty()) options.fail("devices", "names no device; give one at least, or auto");
    for (size_t i = 0; i < names.size(); ++i) {
      parse(options, str("devices.", i), names[i]);
      if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
          names.begin() + static_cast<std::ptrdiff_t>(i))
        options.fail(str("devices.", i), str("is ", names[i], ", which is given twice"));
    }
  }
  if (options.is_auto("placement")) return names;
  const bool listed = !names.empty();
  for (const Options& item : options.sections("placement")) {
    const std::string& name = item.text("device");
    parse(item, "device", name);
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (listed) item.fail("device", str("is ", name, ", which devices does not list: ", join(names, ", ")));
    names.push_back(name);
  }
  return names;
}

std::vector<DevicePlan> plan_devices(const Options& options, const std::vector<std::string>& names, const Host& host,
                                     bool gpus) {
  std::vector<DevicePlan> devices;
  std::map<int, std::string> taken;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string key = key_of_device(options, i);
    const DeviceName name = parse(options, key, names[i]);
    if (!name.gpu) {
      devices.push_back(cores_of(options, key, name, host, taken, names[i]));
      continue;
    }
    if (!gpus || name.first >= static_cast<int>(host.gpus.size()))
      options.fail(key, str("is ", names[i], ", and ",
                            gpus ? str(host.name, " has ", host.gpus.size(), " GPUs, counted from 0")
                                 : str("this run uses no GPU (device: cpu, or none was found)")));
    DevicePlan device;
    device.kind = DevicePlan::Kind::gpu;
    device.gpu = name.first;
    devices.push_back(device);
  }
  return devices;
}

void check_placement(const Options& options) {
  if (options.is_auto("placement")) return;
  const std::vector<Written> written = written_placement(options);
  if (written.empty()) options.fail("placement", "places no block; give a list, or auto");
  int64_t next = 0;
  for (const Written& one : written) {
    if (one.blocks.begin > next)
      one.options.fail("blocks",
                       str("is ", to_text(one.blocks), ", which leaves a gap: block ", next, " is on no device"));
    if (one.blocks.begin < next)
      one.options.fail("blocks",
                       str("is ", to_text(one.blocks), ", and block ", one.blocks.begin, " is already on a device"));
    next = one.blocks.end;
  }
}

std::vector<PlacedBlocks> place_blocks(const Options& options, int devices, bool own_memory, const Description& model) {
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  std::vector<PlacedBlocks> placed;
  if (options.is_auto("placement")) {
    if (devices > blocks)
      options.fail("devices", str("are ", devices, ", and the model has ", blocks, blocks == 1 ? " block" : " blocks",
                                  "; take at most as many"));
    const auto ranges = balanced(placement_costs(model, own_memory), devices);
    for (int device = 0; device < devices; ++device) placed.push_back({ranges[static_cast<size_t>(device)], device});
    return placed;
  }
  check_placement(options);
  const std::vector<std::string> names = device_names(options);
  const std::vector<Written> written = written_placement(options);
  for (const Written& one : written) {
    if (one.blocks.end > blocks)
      one.options.fail("blocks", str("is ", to_text(one.blocks), ", and the model has ", blocks,
                                     blocks == 1 ? " block" : " blocks", ", counted from 0"));
    const auto device = std::find(names.begin(), names.end(), one.device) - names.begin();
    // Neighbours on one device are one stage.
    if (!placed.empty() && placed.back().device == static_cast<int>(device))
      placed.back().blocks.end = one.blocks.end;
    else
      placed.push_back({one.blocks, static_cast<int>(device)});
  }
  if (placed.back().blocks.end < blocks)
    options.fail("placement", str("ends with block ", placed.back().blocks.end - 1, ", and the model has ", blocks,
                                  " blocks; every block needs a device"));
  return placed;
}

}  // namespace convoy
