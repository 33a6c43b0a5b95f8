// What core/data offers by name, without LibTorch.
#pragma once
#include <vector>

#include "core/options.h"

namespace convoy {
const std::vector<Entry>& dataset_catalogue();
const std::vector<Entry>& transform_catalogue();
std::vector<Option> common_data_options();  // keys that every data set takes: transforms, prefetch, samples, seed
}  // namespace convoy
