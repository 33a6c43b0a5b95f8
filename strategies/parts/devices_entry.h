// Devices as a strategy's section lists them: "cuda:0", "cores:0", "cores:0-3", "cores:0+2". Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"

namespace convoy {

// One device. Throws ConfigError at `options`' key `key` for another form, or for a GPU or core that `host` does not have
// or may not use.
DevicePlan parse_device(const Options& options, const std::string& key, const std::string& text, const Host& host);

// The list at `key`, in order; empty when the key is `auto`. Also throws for a GPU or core named twice.
std::vector<DevicePlan> parse_devices(const Options& options, const std::string& key, const Host& host);

}  // namespace convoy
