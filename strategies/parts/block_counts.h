// What can be told of a model's blocks without making their layers: names, parameters, products, ties.
#pragma once
#include <cstdint>

#include "core/model.h"
#include "strategies/catalogue.h"

namespace convoy {

// Builds each block once with layers that hold nothing; modules that a block makes itself are made, counted and dropped, one
// block at a time. What only running tells (FLOPs, activations) stays 0. The same on every rank. Throws what the model
// throws, and Error(config) for a tie to what no earlier layer made.
Description count_blocks(const Model& model, int64_t element_bytes);

}  // namespace convoy
