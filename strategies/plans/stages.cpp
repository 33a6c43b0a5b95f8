#include "strategies/plans/stages.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/describe.h"
#include "core/base/options.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/pipeline.h"

namespace convoy {
namespace {

bool is_count(const std::string& text) {
  return !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
}

std::string item(size_t index) { return str("stages.", index); }

// "2 blocks: embedding, output"
std::string blocks_of(const ModelDescription& model) {
  constexpr size_t shown = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < model.blocks.size() && i < shown; ++i) names.push_back(model.blocks[i].name);
  const size_t blocks = model.blocks.size();
  return str(blocks, blocks == 1 ? " block: " : " blocks: ", join(names, ", "), blocks > shown ? ", …" : "");
}

void check_follows(const Options& options, size_t index, const BlockRange& before, const BlockRange& range) {
  if (range.begin > before.end)
    options.fail(item(index), "is ", to_text(range), ", which leaves a gap: no stage has block ", before.end,
                 range.begin - before.end > 1 ? str(" to ", range.begin - 1) : "");
  if (range.begin < before.end)
    options.fail(item(index), "is ", to_text(range), ", which overlaps the stage before it, ", to_text(before),
                 "; stages are in the model's order");
}

// Fills each stage up to `cap` in one pass; the last stage takes the rest.
std::vector<BlockRange> filled(const std::vector<double>& costs, int stages, double cap) {
  std::vector<BlockRange> ranges;
  const auto blocks = int64_t(costs.size());
  int64_t begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int64_t leave = stages - stage - 1;  // minimal number of blocks for later stages
    int64_t end = begin + 1;
    double sum = costs[size_t(begin)];
    while (end < blocks - leave && (leave == 0 || sum + costs[size_t(end)] <= cap)) sum += costs[size_t(end++)];
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

// Throws for more stages than blocks, at the key that requests them: a list, stages per rank, or ranks.
[[noreturn]] void too_many(const PipelineOptions& options, int stages, const ModelDescription& model) {
  const std::string all = str(stages, " stages, and the model has ", blocks_of(model));
  const Options& section = options.section;
  if (options.stages) section.fail("stages", "has ", all, "; there must be at least one block per stage");
  const int virtual_stages = options.virtual_stages;
  const std::string ranks = str(stages / virtual_stages, stages / virtual_stages == 1 ? " rank" : " ranks");
  if (!options.auto_virtual && virtual_stages > 1)
    section.fail("virtual", "is ", virtual_stages, ", which on ", ranks, " makes ", all,
                 "; take fewer a rank, or fewer ranks");
  if (options.schedule == ScheduleKind::interleaved && virtual_stages > 1)
    section.fail("schedule", "interleaved gives each of ", ranks, " ", virtual_stages, " stages, which makes ", all,
                 "; take 1f1b, or fewer ranks");
  const std::string fewer = str(ranks, " make ", all, "; take at most as many ranks as blocks");
  if (section.json().contains("mesh")) section.fail("mesh.pipeline", "is ", stages, ": ", fewer);
  section.fail("stages", "is auto: ", fewer);
}

double most(const std::vector<double>& costs, const std::vector<BlockRange>& ranges) {
  double most = 0;
  for (const BlockRange& range : ranges)
    most = std::max(most, std::accumulate(costs.begin() + range.begin, costs.begin() + range.end, 0.0));
  return most;
}

}  // namespace

std::string to_text(const BlockRange& range) {
  return range.size() == 1 ? str(range.begin) : str(range.begin, "-", range.end - 1);
}

BlockRange parse_blocks(const Options& options, const std::string& key, const std::string& text) {
  const size_t dash = text.find('-');
  const std::string first = text.substr(0, dash), last = dash == std::string::npos ? first : text.substr(dash + 1);
  if (!is_count(first) || !is_count(last))
    options.fail(key, "is '", text, "', must be a block's number or a range of them such as 0-3");
  const BlockRange range{std::atol(first.c_str()), std::atol(last.c_str()) + 1};
  if (range.size() < 1) options.fail(key, "is ", text, ", which holds no block; did you mean ", last, "-", first, "?");
  return range;
}

size_t stage_of(const std::vector<BlockRange>& stages, int64_t block) {
  size_t stage = 0;
  while (block >= stages[stage].end) ++stage;
  return stage;
}

Option stages_option() {
  return describe::list("stages",
                        "number of blocks of each stage, or their ranges, in the model's order: [4, 2] or [0-3, 4-5]; "
                        "auto balances the blocks' cost",
                        describe::text("", "a number of blocks, or a range of blocks"), "auto")
      .or_auto();
}

std::vector<BlockRange> listed_stages(const PipelineOptions& options) {
  std::vector<BlockRange> ranges;
  if (!options.stages) return ranges;
  const Options& section = options.section;
  const std::vector<std::string>& items = *options.stages;
  if (items.empty()) section.fail("stages", "names no stage; give one item a stage, or auto");
  const bool counts = std::all_of(items.begin(), items.end(), is_count);
  for (size_t i = 0; i < items.size(); ++i) {
    const BlockRange before = ranges.empty() ? BlockRange{} : ranges.back();
    if (counts) {
      const int64_t count = std::atol(items[i].c_str());
      if (count == 0) section.fail(item(i), "is 0: a stage has one block at least");
      ranges.push_back({before.end, before.end + count});
    } else {
      ranges.push_back(parse_blocks(section, item(i), items[i]));
      check_follows(section, i, before, ranges.back());
    }
  }
  return ranges;
}

std::vector<BlockRange> stage_ranges(const PipelineOptions& options, int stages, const ModelDescription& model) {
  const auto blocks = int64_t(model.blocks.size());
  const std::vector<BlockRange> listed = listed_stages(options);
  if (stages > blocks) too_many(options, stages, model);
  if (listed.empty()) return balanced(block_costs(model), stages);
  const Options& section = options.section;
  if (int(listed.size()) != stages)
    section.fail("stages", "has ", listed.size(), " items, but there are ", stages, " stages (ranks × virtual)");
  if (listed.back().end > blocks)
    section.fail(item(listed.size() - 1), "goes up to block ", listed.back().end - 1, ", and the model has ",
                 blocks_of(model), "; they are counted from 0");
  if (listed.back().end < blocks)
    section.fail("stages", "ends with block ", listed.back().end - 1, ", and the model has ", blocks_of(model),
                 "; every block needs a stage");
  return listed;
}

std::vector<BlockRange> balanced(const std::vector<double>& costs, int stages) {
  CONVOY_CHECK(stages > 0 && size_t(stages) <= costs.size(), stages, " stages of ", costs.size(), " blocks");
  // The best cap is between the cost of the most expensive block and the sum of all. The largest stage of a pass is a
  // valid cap too, so the search ends with an exact one.
  double low = *std::max_element(costs.begin(), costs.end());
  std::vector<BlockRange> best = filled(costs, stages, low);
  double high = most(costs, best);
  for (int step = 0; step < 64 && low < high; ++step) {
    const double cap = low + (high - low) / 2;
    const std::vector<BlockRange> tried = filled(costs, stages, cap);
    const double reached = most(costs, tried);
    if (reached < high) {
      high = reached;
      best = tried;
    }
    if (reached > cap) low = cap;
  }
  return best;
}

std::vector<double> block_costs(const ModelDescription& model) {
  const auto costs_by = [&](auto cost) {
    std::vector<double> costs;
    for (const BlockDescription& block : model.blocks) costs.push_back(double(cost(block)));
    return costs;
  };
  const auto any = [](const std::vector<double>& costs) {
    return std::any_of(costs.begin(), costs.end(), [](double cost) { return cost > 0; });
  };
  const std::vector<double> measured = costs_by([](const BlockDescription& block) { return block.row_flops; });
  if (any(measured)) return measured;
  const std::vector<double> counted = costs_by([](const BlockDescription& block) { return block.products; });
  if (any(counted)) return counted;
  return std::vector<double>(model.blocks.size(), 1.0);
}

std::vector<double> time_shares(const ModelDescription& model) {
  std::vector<double> shares;
  double all = 0;
  for (const BlockDescription& block : model.blocks) {
    shares.push_back(block.time);
    all += block.time;
  }
  if (all <= 0) {
    shares = block_costs(model);
    all = std::accumulate(shares.begin(), shares.end(), 0.0);
  }
  for (double& share : shares) share /= all;
  return shares;
}

double total_share(const std::vector<double>& shares, const BlockRange& blocks) {
  return std::accumulate(shares.begin() + blocks.begin, shares.begin() + blocks.end, 0.0);
}

std::vector<double> stage_times(const ModelDescription& model, const std::vector<BlockRange>& stages, int tensor) {
  std::vector<double> shares = time_shares(model);
  for (size_t index = 0; index < shares.size(); ++index) {
    const BlockDescription& block = model.blocks[index];
    double cut = double(block.cut_parameters);
    for (const TiedTensor& tie : block.ties)
      if (tie.elements <= model.blocks[size_t(tie.block)].cut_parameters) cut += double(tie.elements);
    const auto products = double(block.products);
    const double divided = products > 0 ? std::min(1.0, cut / products) : 0;
    shares[index] *= 1 - divided + divided / tensor;
  }
  std::vector<double> times;
  for (const BlockRange& stage : stages) times.push_back(total_share(shares, stage));
  return times;
}

std::string stages_text(const std::vector<BlockRange>& stages, const std::vector<std::string>& on,
                        const ModelDescription& model) {
  std::string text;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const BlockRange& range = stages[stage];
    int64_t parameters = 0;
    for (int64_t block = range.begin; block < range.end; ++block) parameters += model.blocks[size_t(block)].parameters;
    const std::string& first = model.blocks[size_t(range.begin)].name;
    const std::string& last = model.blocks[size_t(range.end - 1)].name;
    text += str("stage ", stage, " on ", on[stage], ": ", range.size() == 1 ? "block " : "blocks ", to_text(range),
                " (", first, range.size() == 1 ? "" : " to " + last, "), ", parameters, " parameters\n");
  }
  return text;
}

namespace {

using Placed = DeviceOptions::Placed;

// The items of `placement`, in the model's order.
std::vector<Placed> placed_in_order(const DeviceOptions& options) {
  std::vector<Placed> all = *options.placement;
  std::stable_sort(all.begin(), all.end(),
                   [](const Placed& a, const Placed& b) { return a.blocks.begin < b.blocks.begin; });
  return all;
}

// Texts of the used devices, without duplicates: those in `devices`, else those in `placement`.
std::vector<std::string> device_texts(const DeviceOptions& options) {
  if (options.devices) return *options.devices;
  std::vector<std::string> texts;
  if (!options.placement) return texts;
  for (const Placed& item : *options.placement)
    if (std::find(texts.begin(), texts.end(), item.device) == texts.end()) texts.push_back(item.device);
  return texts;
}

// Costs to balance: shares of time, and of memory if devices do not share it.
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

std::vector<DevicePlan> listed_devices(const DeviceOptions& options, const Host& host) {
  std::vector<DevicePlan> devices = parse_devices(options, host);
  if (!options.placement) return devices;
  const bool listed = !devices.empty();
  const std::vector<std::string> texts = device_texts(options);
  std::set<std::string> known;
  TakenDevices taken;
  for (const Placed& item : *options.placement) {
    const std::string& text = item.device;
    if (listed && std::find(texts.begin(), texts.end(), text) == texts.end())
      item.section.fail("device", "is ", text, ", which devices does not list: ", join(texts, ", "));
    if (listed || !known.insert(text).second) continue;
    devices.push_back(parse_device(item.section, "device", text, host, taken));
  }
  return devices;
}

void check_placement(const DeviceOptions& options) {
  if (!options.placement) return;
  const std::vector<Placed> written = placed_in_order(options);
  if (written.empty()) options.section.fail("placement", "places no block; give a list, or auto");
  int64_t next = 0;
  for (const Placed& one : written) {
    if (one.blocks.begin > next)
      one.section.fail("blocks", "is ", to_text(one.blocks), ", which leaves a gap: block ", next, " is on no device");
    if (one.blocks.begin < next)
      one.section.fail("blocks", "is ", to_text(one.blocks), ", and block ", one.blocks.begin,
                       " is already on a device");
    next = one.blocks.end;
  }
}

std::vector<std::string> idle_devices(const DeviceOptions& options) {
  std::vector<std::string> idle;
  if (!options.devices || !options.placement) return idle;
  std::set<std::string> used;
  for (const Placed& item : *options.placement) used.insert(item.device);
  for (const std::string& device : *options.devices)
    if (used.count(device) == 0) idle.push_back(device);
  return idle;
}

std::vector<PlacedBlocks> place_blocks(const DeviceOptions& options, int devices, bool separate_memory,
                                       const ModelDescription& model) {
  const auto blocks = int64_t(model.blocks.size());
  std::vector<PlacedBlocks> placed;
  if (!options.placement) {
    if (devices > blocks)
      options.section.fail("devices", "are ", devices, ", and the model has ", blocks,
                           blocks == 1 ? " block" : " blocks", "; take at most as many");
    const auto ranges = balanced(placement_costs(model, separate_memory), devices);
    for (int device = 0; device < devices; ++device) placed.push_back({ranges[size_t(device)], device});
    return placed;
  }
  check_placement(options);
  const std::vector<std::string> names = device_texts(options);
  const std::vector<Placed> written = placed_in_order(options);
  for (const Placed& one : written) {
    if (one.blocks.end > blocks)
      one.section.fail("blocks", "is ", to_text(one.blocks), ", and the model has ", blocks,
                       blocks == 1 ? " block" : " blocks", ", counted from 0");
    const auto device = std::find(names.begin(), names.end(), one.device) - names.begin();
    // Neighbouring blocks on one device are one stage.
    if (!placed.empty() && placed.back().device == int(device))
      placed.back().blocks.end = one.blocks.end;
    else
      placed.push_back({one.blocks, int(device)});
  }
  if (placed.back().blocks.end < blocks)
    options.section.fail("placement", "ends with block ", placed.back().blocks.end - 1, ", and the model has ", blocks,
                         " blocks; every block needs a device");
  return placed;
}

}  // namespace convoy
