// What is done with all row tables of a rank alike (row_table.h).
#pragma once
#include <vector>

#include "core/context.h"
#include "strategies/parts/model_part.h"
#include "strategies/parts/parameter.h"
#include "strategies/parts/plain_layers.h"
#include "strategies/parts/rows/row_blocks.h"

namespace convoy {

class HostRows;

// The layer of an embedding whose weight becomes a row table, which `blocks` deal out to ranks (null: they do not) and ranks
// of `host` share (null: they do not).
Layer table_embedding(const ParameterPtr& weight, const LayerStore& store,
                      std::shared_ptr<const RowBlocks> blocks = nullptr, std::shared_ptr<HostRows> host = nullptr);
std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts);
// Rank 0 warns where the optimizer is to be lazy and there is no table that it could be so with.
void tell_lazy(const Context& context, const std::vector<ParameterPtr>& tables);
// An accumulation begins.
void begin_rows(const std::vector<ParameterPtr>& tables);
// The update is made of what this rank has touched.
void take_rows(const std::vector<ParameterPtr>& tables);

}  // namespace convoy
