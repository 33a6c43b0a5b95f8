// Layers that every rank of a tensor group has whole, and that are used on parts of activations too: what they draw,
// and the gradients of their parameters, are those of the whole (parts/tensor/passage.h).
#pragma once
#include "strategies/parts/tensor/tensor_group.h"

namespace convoy {

// `inner` outside regions; else its product with weight and bias [dim], whose gradients are summed over the group.
Layer make_region_norm(const LayerPlace& place, const Layer& inner, const ParameterPtr& weight,
                       const ParameterPtr& bias, double eps);
// Drops of a part what the whole would have dropped of it.
Layer make_region_dropout(const LayerPlace& place, const Layer& inner, double p);
// The tensor of a handle, asked for within a region or not.
std::unique_ptr<ParameterHandle> make_region_parameter(const LayerPlace& place, std::unique_ptr<ParameterHandle> inner);

}  // namespace convoy
