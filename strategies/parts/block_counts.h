// What can be told of a model's blocks without making their layers: names, parameters, products, ties.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/model_interface.h"
#include "strategies/catalogue.h"

namespace convoy {

// How a tensor group cuts a tensor that a layer makes.
struct PlannedCut {
  int64_t dimension = 0;
  int64_t whole = 0;  // size of that dimension
  int64_t parts = 1;  // cut one by one
};
using PlannedCuts = std::map<std::string, PlannedCut>;  // by canonical name; what is not listed is whole

// Builds each block once with layers that hold nothing; modules that a block makes itself are made, counted and dropped, one
// block at a time. What only running tells (FLOPs, activations) stays 0. The same on every rank. Throws what the model
// throws, and Error(config) for a tie to what no earlier layer made.
Description count_blocks(const Model& model, int64_t element_bytes);
// The same way, for a rank that builds some blocks and has layers that are tied to others'.
PlannedCuts planned_cuts(const Model& model);

}  // namespace convoy
