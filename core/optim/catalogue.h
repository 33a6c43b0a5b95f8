// What core/optim offers by name, without LibTorch.
#pragma once
#include <vector>

#include "core/options.h"

namespace convoy {
const std::vector<Entry>& optimizer_catalogue();
const std::vector<Entry>& schedule_catalogue();
}  // namespace convoy
