// pipeline: stages of the model on ranks. See pipeline.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_pipeline(const Options& options);
}
