// The differences between two resolved configurations, such as a checkpoint's and that of the run that continues it.
// Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

struct Difference {
  std::string key;
  Json was, is;  // null where a configuration has no such key
};

// `is` newer than `was`: a key that `was` lacks counts only if somebody wrote it, since later versions add keys with
// defaults. A component of another name may have other options: of those only the written ones count.
std::vector<Difference> differences(const Json& was, const Json& is, const std::vector<std::string>& ignored);

std::string to_string(const Difference& difference);  // "optimizer.lr: 0.1 -> 0.01"

// Keys that may differ between the runs of one folder, and so under train.resume: auto.
const std::vector<std::string>& resumable_keys();

}  // namespace convoy
