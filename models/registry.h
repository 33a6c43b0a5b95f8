// Fills the registry with what this folder has; the only place that names its classes.
#pragma once
#include "core/registry.h"

namespace convoy {
void register_models(Registry& registry);
}
