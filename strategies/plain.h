// The strategy whose ranks are all alike, in any number and over every backend: where jobs that do not train have ranks.
// Without LibTorch.
#pragma once
#include "strategies/catalogue.h"

namespace convoy {
const StrategyEntry& plain_strategy();
}
