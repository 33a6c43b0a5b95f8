// What models with the option `rows` check of it. Without LibTorch.
#pragma once
#include "core/options.h"

namespace convoy {

// Throws ConfigError where it is none of true, false, sharded and auto.
void check_rows_option(const Options& model);

}  // namespace convoy
