// Models and their options, without LibTorch.
#pragma once
#include <vector>

#include "core/options.h"

namespace convoy {
const std::vector<Entry>& model_catalogue();
}
