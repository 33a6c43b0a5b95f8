// tensor_parallel: one replica whose layers the ranks share out. See tensor_parallel.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_tensor_parallel(const Options& options);
}
