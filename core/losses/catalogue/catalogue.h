// Catalogue of losses, without LibTorch.
#pragma once
#include <vector>

#include "core/base/options.h"

namespace convoy {
const std::vector<Entry>& loss_catalogue();
}  // namespace convoy
