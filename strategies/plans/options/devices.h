// Devices in a strategy's section: "cuda:0", "cores:0", "cores:0-3", "cores:0+2". Without LibTorch.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/plan.h"
#include "core/config/run_config.h"
#include "strategies/plans/stages.h"

namespace convoy {

// GPUs (true) and cores (false) of several devices.
using TakenDevices = std::set<std::pair<bool, int>>;
// Parses one device and adds its GPU or cores to `taken`. Throws ConfigError at key `key` of `options` for an invalid
// text. Also throws it for a GPU or core that `host` lacks, that the run may not use, or that is taken already.
DevicePlan parse_device(const Options& options, const std::string& key, const std::string& text, const Host& host,
                        TakenDevices& taken);

// Typed values of `devices` and, if the strategy has it, `placement`.
struct DeviceOptions {
  struct Placed {
    BlockRange blocks;
    std::string device;
    Options section;  // for errors
  };
  std::optional<std::vector<std::string>> devices = {};  // none: auto
  std::optional<std::vector<Placed>> placement = {};     // none: auto
  Options section = {};                                  // for errors
};
// Throws ConfigError at a malformed range of blocks.
DeviceOptions device_options(const Options& strategy);

// Returns the listed devices, in order; empty for `auto`. Also throws ConfigError for a repeated GPU or core.
std::vector<DevicePlan> parse_devices(const DeviceOptions& options, const Host& host);

// --- Keys without effect, and combinations that strategies refuse ---

// Checks keys that all strategies share: `loss_scale` without fp16, keys of `sync` (plans/options/step_options.h) that
// need replicas, and keys without effect. Throws ConfigError at the key. Returns a line for each key that --set left
// without effect.
std::vector<std::string> check_shared_effects(const RunConfig& config);

// Refuses `reshard_after_forward` if parameters are not sharded.
std::vector<std::string> check_shard_effects(const Options& section);

// Refuses keys of an axis that the section does not have. `because`: source location where the axis would be given.
// `reason`: "needs …, but …; leave it out".
std::vector<std::string> refuse_keys_of(const Options& section, const std::vector<std::string>& keys,
                                        const std::string& reason, const SourceLocation& because);

// --- CUDA graphs (StepGraph) ---

Option graph_option();
// Throws ConfigError at the key if graphs are required but no GPU can record them, or if `sync` makes steps differ.
void check_graph(const RunConfig& config, const Topology& topology);

}  // namespace convoy
