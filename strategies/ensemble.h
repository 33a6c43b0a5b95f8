// ensemble: many small models at once. See ensemble.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_ensemble(const Options& options);
}
