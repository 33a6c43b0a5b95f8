// What of the StepGraph is described without LibTorch.
#pragma once
#include "core/config/run_config.h"
#include "core/topology.h"

namespace convoy {

Option graph_option();
// Throws ConfigError at the key where graphs are asked for, and no GPU will record them, or `sync` makes steps unlike each
// other.
void check_graph(const RunConfig& config, const Topology& topology);

}  // namespace convoy
