// Counts a model's blocks without creating their layers: names, parameters, products, tied parameters.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/model_interface.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// Sharding of a layer's tensor by a tensor group.
struct PlannedShard {
  int64_t dimension = 0;
  int64_t whole = 0;  // size of that dimension
  int64_t parts = 1;  // fused products, sharded one by one
};
using PlannedShards = std::map<std::string, PlannedShard>;  // by canonical name; other tensors are whole

// Builds each block once with layers without tensors. Foreign modules are created, counted and freed, one block at a
// time. FLOPs and activations stay 0, because they need a run. The result is equal on every rank. Throws exceptions of
// the model, and Error(config) for a tie to a tensor that no earlier layer creates.
ModelDescription count_blocks(const Model& model, int64_t element_bytes);
// Counts the shards in the same way, for a rank that builds some blocks and has layers tied to other ranks' blocks.
PlannedShards planned_shards(const Model& model);

}  // namespace convoy
