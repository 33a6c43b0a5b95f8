// What core/losses offers by name, without LibTorch.
#pragma once
#include <vector>

#include "core/options.h"

namespace convoy {
const std::vector<Entry>& loss_catalogue();
}  // namespace convoy
