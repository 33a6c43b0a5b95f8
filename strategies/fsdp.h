// fsdp: data-parallel ranks that divide what they hold. See fsdp.cpp.
#pragma once
#include <memory>

#include "core/options.h"
#include "core/strategy.h"

namespace convoy {
std::unique_ptr<Strategy> make_fsdp(const Options& options);
}
