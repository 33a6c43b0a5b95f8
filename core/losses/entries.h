// The descriptions that the catalogue lists. Without LibTorch.
#pragma once
#include "core/options.h"

namespace convoy {
Entry bce_entry();
Entry mse_entry();
Entry cross_entropy_entry();
Entry bpr_entry();
}  // namespace convoy
