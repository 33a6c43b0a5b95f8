// mlp: features [.., B, …] → hidden layers → classes [.., B, C], or numbers [.., B, …shape of the target].
// Blocks: one per hidden layer ("hidden.0", …) and "output". Needs the fields "features" and "target"; a target with a
// cardinality is a class (cross-entropy, accuracy), any other is predicted as it is (mse).
#pragma once
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "core/options.h"

namespace convoy {
ModelPtr make_mlp(const Options& options, const Schema& schema);
}  // namespace convoy
