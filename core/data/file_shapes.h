// Sizes of arrays and tables by their files' headers, before anything is loaded. Without LibTorch.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "core/options.h"

namespace convoy {

using FileShape = std::optional<std::vector<int64_t>>;  // of one row's features; nullopt: no header that tells

// Of the data set `table`: by its options, in the file at `path` (data.path or data.evaluate.path).
FileShape table_features_shape(const Options& options, const std::string& path);
// Of the data set `fashion_mnist`: [1, height, width].
FileShape fashion_features_shape(const Options& options);

}  // namespace convoy
