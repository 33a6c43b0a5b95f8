// Blocks of each stage or device, and refusals.
#include "strategies/plans/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/base/error.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/pipeline.h"

namespace convoy {
namespace {

PipelineOptions options_with(const Json& written) {
  Json section{{"name", "pipeline"}, {"stages", "auto"}, {"schedule", "1f1b"}, {"virtual", "auto"}};
  section.update(written);
  return pipeline_options(Options(section, {}, "strategy"));
}

PipelineOptions options_of(const Json& stages) { return options_with({{"stages", stages}}); }

ModelDescription model_of(const std::vector<int64_t>& products, const std::vector<int64_t>& parameters = {}) {
  ModelDescription model;
  for (size_t i = 0; i < products.size(); ++i) {
    BlockDescription block;
    block.name = str("block", i);
    block.products = products[i];
    block.parameters = parameters.empty() ? products[i] : parameters[i];
    model.blocks.push_back(block);
  }
  return model;
}

std::string text_of(const std::vector<BlockRange>& ranges) {
  std::string text;
  for (const BlockRange& range : ranges) text += to_text(range) + " ";
  return text;
}

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

double dearest(const std::vector<double>& costs, const std::vector<BlockRange>& ranges) {
  double most = 0;
  for (const BlockRange& range : ranges)
    most = std::max(most, std::accumulate(costs.begin() + range.begin, costs.begin() + range.end, 0.0));
  return most;
}

// Tries every division into stages.
double best(const std::vector<double>& costs, size_t begin, int stages) {
  if (stages == 1) return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end(), 0.0);
  double least = 1e300, sum = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(stages) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    least = std::min(least, std::max(sum, best(costs, end, stages - 1)));
  }
  return least;
}

TEST(Stages, CountsAndRanges) {
  const ModelDescription model = model_of({1, 1, 1, 1, 1, 1});
  EXPECT_EQ(text_of(stage_ranges(options_of({"4", "2"}), 2, model)), "0-3 4-5 ");
  EXPECT_EQ(text_of(stage_ranges(options_of({"0-3", "4-5"}), 2, model)), "0-3 4-5 ");
  EXPECT_EQ(text_of(stage_ranges(options_of({"0-3", "4", "5"}), 3, model)), "0-3 4 5 ");
}

TEST(Stages, BalancedIsOptimal) {
  uint64_t state = 1;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> costs;
    const size_t blocks = 1 + trial % 9;
    for (size_t i = 0; i < blocks; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      costs.push_back(static_cast<double>(state >> 60));  // 0 … 15, often with equal values
    }
    for (int stages = 1; stages <= static_cast<int>(blocks); ++stages) {
      const auto ranges = balanced(costs, stages);
      ASSERT_EQ(static_cast<int>(ranges.size()), stages);
      int64_t next = 0;
      for (const BlockRange& range : ranges) {
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), 1);
        next = range.end;
      }
      EXPECT_EQ(next, static_cast<int64_t>(blocks));
      EXPECT_DOUBLE_EQ(dearest(costs, ranges), best(costs, 0, stages)) << "trial " << trial << ", " << stages;
    }
  }
}

TEST(Stages, AutoUsesKnownCosts) {
  ModelDescription model = model_of({0, 10, 10, 10, 10, 30});
  EXPECT_EQ(text_of(stage_ranges(options_of("auto"), 2, model)), "0-3 4-5 ");
  for (BlockDescription& block : model.blocks) block.row_flops = 1;  // measured ones come first
  EXPECT_EQ(text_of(stage_ranges(options_of("auto"), 2, model)), "0-2 3-5 ");
  EXPECT_EQ(text_of(stage_ranges(options_of("auto"), 3, model_of({0, 0, 0, 0, 0, 0}))), "0-1 2-3 4-5 ");
}

TEST(Stages, Refusals) {
  const ModelDescription model = model_of({1, 1, 1, 1});
  const auto error = [&](const Json& stages, int count) {
    return message_of([&] { stage_ranges(options_of(stages), count, model); });
  };
  EXPECT_EQ(error({"0-1", "3"}, 2), "strategy.stages.1: is 3, which leaves a gap: no stage has block 2");
  EXPECT_EQ(error({"0-2", "2-3"}, 2),
            "strategy.stages.1: is 2-3, which overlaps the stage before it, 0-2; stages are in the model's order");
  EXPECT_EQ(error({"1-3"}, 1), "strategy.stages.0: is 1-3, which leaves a gap: no stage has block 0");
  EXPECT_EQ(error({"3-1", "0"}, 2), "strategy.stages.0: is 3-1, which holds no block; did you mean 1-3?");
  EXPECT_EQ(error({"2", "x"}, 2), "strategy.stages.0: is 2, which leaves a gap: no stage has block 0 to 1");
  EXPECT_EQ(error({"0-1", "x"}, 2),
            "strategy.stages.1: is 'x', must be a block's number or a range of them such as 0-3");
  EXPECT_EQ(error({"4", "0"}, 2), "strategy.stages.1: is 0: a stage has one block at least");
  EXPECT_EQ(error(Json::array(), 2), "strategy.stages: names no stage; give one item a stage, or auto");
  EXPECT_EQ(error({"2", "2"}, 3), "strategy.stages: has 2 items, but there are 3 stages (ranks × virtual)");
  EXPECT_NE(error({"2", "3"}, 2).find("strategy.stages.1: goes up to block 4, and the model has 4 blocks: block0"),
            std::string::npos);
  EXPECT_NE(error({"1", "2"}, 2).find("strategy.stages: ends with block 2, and the model has 4 blocks"),
            std::string::npos);
  EXPECT_NE(error("auto", 5).find("strategy.stages: is auto: 5 ranks make 5 stages, and the model has 4 blocks"),
            std::string::npos);
  // More stages than blocks are reported at the key that requests them.
  const auto asked = [&](const Json& section, int count) {
    return message_of([&] { stage_ranges(options_with(section), count, model); });
  };
  EXPECT_EQ(
      asked({{"schedule", "interleaved"}, {"virtual", 3}}, 6).rfind("strategy.virtual: is 3, which on 2 ranks", 0), 0u);
  EXPECT_EQ(asked({{"schedule", "interleaved"}, {"virtual", "auto"}}, 6).rfind("strategy.schedule: interleaved", 0),
            0u);
  EXPECT_EQ(asked({{"schedule", "1f1b"}, {"virtual", "auto"}, {"mesh", {{"pipeline", 5}}}}, 5)
                .rfind("strategy.mesh.pipeline: is 5", 0),
            0u);
  EXPECT_EQ(asked({{"schedule", "1f1b"}, {"virtual", 1}, {"stages", {"1", "1", "1", "1", "1"}}}, 5)
                .rfind("strategy.stages: has 5 stages", 0),
            0u);
}

// ---- placement ------------------------------------------------------------------------------------------------------

DeviceOptions placement_of(const Json& devices, const std::vector<std::pair<std::string, std::string>>& placed) {
  Json items = "auto";
  if (!placed.empty()) items = Json::array();
  for (const auto& [blocks, device] : placed) items.push_back({{"blocks", blocks}, {"device", device}});
  return device_options(Options(Json{{"devices", devices}, {"placement", items}}, {}, "strategy"));
}

std::string text_of(const std::vector<PlacedBlocks>& placed) {
  std::string text;
  for (const PlacedBlocks& one : placed) text += str(to_text(one.blocks), "@", one.device, " ");
  return text;
}

Host host_with(int cores, int gpus) {
  Host host;
  host.name = "here";
  for (int core = 0; core < cores; ++core) host.cores.push_back({10 + core, 0, 0, {10 + core, 20 + core}});
  for (int gpu = 0; gpu < gpus; ++gpu) host.gpus.push_back({gpu, "", "", 0, 0});
  return host;
}

TEST(Placement, ListsAndAuto) {
  const ModelDescription model = model_of({1, 1, 1, 1, 1, 1});
  EXPECT_EQ(text_of(place_blocks(placement_of("auto", {{"0-3", "cores:0"}, {"4-5", "cores:1"}}), 2, false, model)),
            "0-3@0 4-5@1 ");
  // Any order of items; a device may occur twice, and neighbouring blocks on one device are merged.
  const DeviceOptions again = placement_of(
      {"cores:1", "cores:0"}, {{"4-5", "cores:1"}, {"0", "cores:1"}, {"1", "cores:1"}, {"2-3", "cores:0"}});
  EXPECT_EQ(text_of(place_blocks(again, 2, false, model)), "0-1@0 2-3@1 4-5@0 ");
  EXPECT_EQ(text_of(place_blocks(placement_of("auto", {}), 3, false, model)), "0-1@0 2-3@1 4-5@2 ");
}

TEST(Placement, CountsMemoryOnDevicesWithTheirOwn) {
  const ModelDescription model = model_of({0, 10, 10, 10}, {300, 10, 10, 10});
  EXPECT_EQ(text_of(place_blocks(placement_of("auto", {}), 2, false, model)), "0-1@0 2-3@1 ");
  EXPECT_EQ(text_of(place_blocks(placement_of("auto", {}), 2, true, model)), "0@0 1-3@1 ");
}

TEST(Placement, DevicesOfAHost) {
  const auto devices = listed_devices(placement_of({"cores:10-11", "cores:13+23", "cuda:1"}, {}), host_with(4, 2));
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0].cores, (std::vector<int>{10, 11}));
  EXPECT_EQ(devices[1].cores, (std::vector<int>{13, 23}));
  EXPECT_EQ(devices[2].kind, DevicePlan::Kind::gpu);
  EXPECT_EQ(devices[2].gpu, 1);
  const auto placed =
      listed_devices(placement_of("auto", {{"2", "cuda:1"}, {"0", "cores:11"}, {"1", "cuda:1"}}), host_with(4, 2));
  ASSERT_EQ(placed.size(), 2u);
  EXPECT_EQ(placed[0].gpu, 1);
  EXPECT_EQ(placed[1].cores, std::vector<int>{11});
  EXPECT_TRUE(listed_devices(placement_of("auto", {}), host_with(4, 2)).empty());
}

TEST(Placement, Refusals) {
  const ModelDescription model = model_of({1, 1, 1, 1});
  const auto placed = [&](const std::vector<std::pair<std::string, std::string>>& items) {
    return message_of([&] {
      const DeviceOptions options = placement_of("auto", items);
      check_placement(options);
      place_blocks(options, 2, false, model);
    });
  };
  EXPECT_EQ(placed({{"0-1", "cores:0"}, {"3", "cores:1"}}),
            "strategy.placement.1.blocks: is 3, which leaves a gap: block 2 is on no device");
  EXPECT_EQ(placed({{"0-2", "cores:0"}, {"2-3", "cores:1"}}),
            "strategy.placement.1.blocks: is 2-3, and block 2 is already on a device");
  EXPECT_EQ(placed({{"0-2", "cores:0"}, {"3-7", "cores:1"}}),
            "strategy.placement.1.blocks: is 3-7, and the model has 4 blocks, counted from 0");
  EXPECT_EQ(placed({{"0-2", "cores:0"}}),
            "strategy.placement: ends with block 2, and the model has 4 blocks; every block needs a device");

  const auto devices = [&](const Json& listed, const std::vector<std::pair<std::string, std::string>>& items) {
    return message_of([&] { listed_devices(placement_of(listed, items), host_with(2, 2)); });
  };
  EXPECT_NE(devices({"cores:10", "cores:12"}, {}).find("strategy.devices.1: "), std::string::npos);
  EXPECT_NE(devices({"cores:10-11", "cores:11"}, {}).find("strategy.devices.1: names core 11"), std::string::npos);
  EXPECT_NE(devices({"cuda:2"}, {}).find("strategy.devices.0: "), std::string::npos);
  EXPECT_NE(devices("auto", {{"0-3", "gpu0"}}).find("strategy.placement.0.device: is 'gpu0', must be"),
            std::string::npos);
  EXPECT_NE(devices("auto", {{"0-3", "cores:12"}}).find("strategy.placement.0.device: "), std::string::npos);
  EXPECT_EQ(devices("auto", {{"0-1", "cores:10-11"}, {"2-3", "cores:11"}}),
            "strategy.placement.1.device: names core 11, which a device before it has; name each once");
  EXPECT_EQ(devices({"cores:10"}, {{"0-3", "cores:11"}}),
            "strategy.placement.0.device: is cores:11, which devices does not list: cores:10");
  EXPECT_EQ(message_of([&] { place_blocks(placement_of("auto", {}), 5, false, model); }),
            "strategy.devices: are 5, and the model has 4 blocks; take at most as many");
}

}  // namespace
}  // namespace convoy
