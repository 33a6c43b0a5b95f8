// What of an optimizer's options row tables cannot have, and the options that are of row tables alone. Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

// lazy, catch_up: of optimizers whose rows move without a gradient.
std::vector<Option> row_options();

// Why the optimizer cannot update row tables whose weight decay is this, as dense ones would be: the key of its options that
// is in the way, with the reason. Empty: it can.
struct RowObstacle {
  std::string key;
  std::string reason;
};
RowObstacle row_obstacle(const std::string& optimizer, const Options& options, double weight_decay);

}  // namespace convoy
