// ddp: data-parallel replicas. See ddp.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_ddp(const Options& options);
}
