// Linear layers under a tensor group: cut by their outputs (column), by their inputs (row), or whole on every rank.
#pragma once
#include "strategies/parts/tensor/tensor_group.h"

namespace convoy {

// input [.., in], whole → [.., out of this rank], which opens a region (parts/tensor/passage.h); `gather`: [.., out], whole.
// `outputs` is the cut of the weight's rows.
Layer make_column_linear(const LayerPlace& place, const ParameterPtr& weight, const ParameterPtr& bias,
                         const DimensionCut& outputs, bool gather);
// input [.., in of this rank], or a whole one of which the rank takes its share → [.., out], whole.
Layer make_row_linear(const LayerPlace& place, const ParameterPtr& weight, const ParameterPtr& bias,
                      const DimensionCut& inputs);
// `inner` with its parameters, which every rank has. Within a region gradients of them are summed over the group.
Layer make_whole_linear(const LayerPlace& place, const Layer& inner, const ParameterPtr& weight,
                        const ParameterPtr& bias);

}  // namespace convoy
