// model_parallel: one rank with several devices. See model_parallel.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_model_parallel(const Options& options);
}
