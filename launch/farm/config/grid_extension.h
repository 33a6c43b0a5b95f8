// Additional values for the keys of a farm's grid: `convoy add RUN --set strategy.grid.seed=[3, 4]`.
#pragma once
#include <string>
#include <vector>

#include "launch/farm/config/read.h"

namespace convoy {

struct GridExtension {
  FarmRun farm;                     // from RUN/config.yaml, to start it again
  std::vector<Pipeline> pipelines;  // points with a new value of at least one key; their names are new in RUN
};

// `overrides`: assignments of --set, each of a grid key with a list of values to add. Skips points that exist already,
// also from earlier additions. Throws Error(command_line) if RUN is no farm with a grid, or if an override has another
// key. Throws ConfigError or Error(config) with all mistakes, and Error(config) if no point is new.
GridExtension extended(const std::string& folder, const std::vector<std::string>& overrides);

}  // namespace convoy
