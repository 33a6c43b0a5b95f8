// single: one rank. See single.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_single(const Options& options);
}
