// Differences between two resolved configurations, such as those of a checkpoint and of the run that resumes it.
// Without LibTorch.
#pragma once
#include <string>
#include <vector>

#include "core/base/options.h"

namespace convoy {

struct Difference {
  std::string key;
  Json was, is;  // null if a configuration has no such key
};

// Differences of `is` against the older `was`. A key that only `is` has counts only if the user wrote it, because
// later versions add keys with defaults. If a component has another name, only written options of the new one count.
std::vector<Difference> differences(const Json& was, const Json& is, const std::vector<std::string>& ignored);

std::string to_string(const Difference& difference);  // "optimizer.lr: 0.1 -> 0.01"

// Keys that may differ between the runs of one folder, and so under train.resume: auto.
const std::vector<std::string>& resumable_keys();

}  // namespace convoy
