// A grid over keys of a configuration: every combination of the values given, with a name for each. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/config/node.h"

namespace convoy {

constexpr int64_t most_grid_points = 10'000;

struct GridPoint {
  std::string name;
  std::vector<std::pair<std::string, const Node*>>
      values;  // by key path, in the order of the grid's keys; parts of the grid
};

// `grid` is a map from key paths to lists of values; the last key varies fastest. `pattern` makes the names: {optimizer.lr}
// stands for that key's value, {index} for the point's number from 0; "" for all keys' last parts with their values. What
// names may not hold becomes '-'. Values of a key with equal texts get "-2", "-3", …; long names end in a hash of the rest.
// Throws ConfigError: at the grid for more than most_grid_points, at the key for a list that is empty, at `pattern_mark`
// for a key that is none of the grid's.
std::vector<GridPoint> grid_points(const Node& grid, const std::string& pattern, const Mark& pattern_mark);
// Of a grid that is no good as a whole: each value of each key once, beside the first ones of the others; keys without a list
// of values are left out.
std::vector<GridPoint> grid_values(const Node& grid);

}  // namespace convoy
