// A data set's description for whoever wants some batches and no training. Without LibTorch.
#pragma once
#include "core/config/run_config.h"

namespace convoy {

// The same data set, where it is made up with fewer rows than it would have: the same columns and the same distribution,
// made in a moment, and not kept. Any other as it is.
Component few_rows(const Component& data);

}  // namespace convoy
