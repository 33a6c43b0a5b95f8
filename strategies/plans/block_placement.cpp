#include "strategies/plans/block_placement.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/describe.h"
#include "core/base/options.h"
#include "strategies/plans/options/devices.h"

namespace convoy {
namespace {

// A placement from the configuration, in the model's order.
struct Written {
  BlockRange blocks;
  std::string device;
  Options options;
};

std::vector<Written> written_placement(const Options& options) {
  std::vector<Written> all;
  for (const Options& item : options.sections("placement"))
    all.push_back({parse_blocks(item, "blocks", item.text("blocks")), item.text("device"), item});
  std::stable_sort(all.begin(), all.end(),
                   [](const Written& a, const Written& b) { return a.blocks.begin < b.blocks.begin; });
  return all;
}

// Texts of the used devices, without duplicates: those in `devices`, else those in `placement`.
std::vector<std::string> device_texts(const Options& options) {
  if (!options.is_auto("devices")) return options.texts("devices");
  std::vector<std::string> texts;
  if (options.is_auto("placement")) return texts;
  for (const Options& item : options.sections("placement"))
    if (std::find(texts.begin(), texts.end(), item.text("device")) == texts.end()) texts.push_back(item.text("device"));
  return texts;
}

// Costs to balance: shares of time, and of memory if each device has its own.
std::vector<double> placement_costs(const ModelDescription& model, bool separate_memory) {
  std::vector<double> costs = block_costs(model);
  if (!separate_memory) return costs;
  const double time = std::accumulate(costs.begin(), costs.end(), 0.0);
  double memory = 0;
  for (const BlockDescription& block : model.blocks) memory += double(block.parameters);
  for (size_t i = 0; i < costs.size(); ++i) {
    costs[i] /= std::max(time, 1.0);
    costs[i] += double(model.blocks[i].parameters) / std::max(memory, 1.0);
  }
  return costs;
}

}  // namespace

std::vector<Option> placement_options() {
  const Option item = describe::section("", "consecutive blocks on a device",
                                        {describe::text("blocks", "indices of blocks, from 0: 4 or 0-3").must(),
                                         describe::text("device", "the device of these blocks").must()});
  return {
      describe::list("devices",
                     "cuda:0, or sets of cores: cores:0, cores:0-3, cores:0+2; auto: the devices of placement, else "
                     "every GPU, else two halves of the rank's cores",
                     describe::text("", "one device"), "auto")
          .or_auto(),
      describe::list("placement",
                     "which blocks are on which device; auto balances the blocks' cost over the devices, "
                     "in their order",
                     item, "auto")
          .or_auto()};
}

std::vector<DevicePlan> listed_devices(const Options& options, const Host& host) {
  std::vector<DevicePlan> devices = parse_devices(options, "devices", host);
  if (options.is_auto("placement")) return devices;
  const bool listed = !devices.empty();
  const std::vector<std::string> texts = device_texts(options);
  std::set<std::string> known;
  DeviceUnits taken;
  for (const Options& item : options.sections("placement")) {
    const std::string& text = item.text("device");
    if (listed && std::find(texts.begin(), texts.end(), text) == texts.end())
      item.fail("device", "is ", text, ", which devices does not list: ", join(texts, ", "));
    if (listed || !known.insert(text).second) continue;
    devices.push_back(parse_device(item, "device", text, host, taken));
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
      one.options.fail("blocks", "is ", to_text(one.blocks), ", which leaves a gap: block ", next, " is on no device");
    if (one.blocks.begin < next)
      one.options.fail("blocks", "is ", to_text(one.blocks), ", and block ", one.blocks.begin,
                       " is already on a device");
    next = one.blocks.end;
  }
}

std::vector<std::string> idle_devices(const Options& options) {
  std::vector<std::string> idle;
  if (options.is_auto("devices") || options.is_auto("placement")) return idle;
  std::set<std::string> used;
  for (const Options& item : options.sections("placement")) used.insert(item.text("device"));
  for (const std::string& device : options.texts("devices"))
    if (used.count(device) == 0) idle.push_back(device);
  return idle;
}

std::vector<PlacedBlocks> place_blocks(const Options& options, int devices, bool separate_memory,
                                       const ModelDescription& model) {
  const auto blocks = int64_t(model.blocks.size());
  std::vector<PlacedBlocks> placed;
  if (options.is_auto("placement")) {
    if (devices > blocks)
      options.fail("devices", "are ", devices, ", and the model has ", blocks, blocks == 1 ? " block" : " blocks",
                   "; take at most as many");
    const auto ranges = balanced(placement_costs(model, separate_memory), devices);
    for (int device = 0; device < devices; ++device) placed.push_back({ranges[size_t(device)], device});
    return placed;
  }
  check_placement(options);
  const std::vector<std::string> names = device_texts(options);
  const std::vector<Written> written = written_placement(options);
  for (const Written& one : written) {
    if (one.blocks.end > blocks)
      one.options.fail("blocks", "is ", to_text(one.blocks), ", and the model has ", blocks,
                       blocks == 1 ? " block" : " blocks", ", counted from 0");
    const auto device = std::find(names.begin(), names.end(), one.device) - names.begin();
    // Neighbouring blocks on one device are one stage.
    if (!placed.empty() && placed.back().device == int(device))
      placed.back().blocks.end = one.blocks.end;
    else
      placed.push_back({one.blocks, int(device)});
  }
  if (placed.back().blocks.end < blocks)
    options.fail("placement", "ends with block ", placed.back().blocks.end - 1, ", and the model has ", blocks,
                 " blocks; every block needs a device");
  return placed;
}

}  // namespace convoy
