// More values for the keys of a farm's grid: `convoy add RUN --set strategy.grid.seed=[3, 4]`.
#pragma once
#include <string>
#include <vector>

#include "launch/farm/read.h"

namespace convoy {

struct Growth {
  FarmRun farm;  // as RUN/config.yaml has it, to be started again
  std::vector<Pipeline>
      pipelines;  // the new points: each has a new value of at least one key; their names are new in RUN
};

// `overrides`: as of --set, each of a key of the grid, whose list gets these values. Points that exist already are left
// out, also those of earlier additions. Throws Error(command_line) where RUN is no farm with a grid or an override is of
// another key, ConfigError and Error(config) for all mistakes, and Error(config) where nothing is new.
Growth grown(const std::string& folder, const std::vector<std::string>& overrides);

}  // namespace convoy
