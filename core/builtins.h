// Fills the registry with core's own data sets, transforms and losses.
#pragma once
#include "core/registry.h"

namespace convoy {
void register_core(Registry& registry);
}
