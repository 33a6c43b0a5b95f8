// hybrid: a mesh of data, pipeline and tensor axes. See hybrid.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_hybrid(const Options& options);
}
