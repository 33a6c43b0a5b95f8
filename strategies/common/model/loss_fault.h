// Checks that a loss is a sum over rows, so that shares, micro-batches and accumulated steps add up.
#pragma once
#include <string>

#include "core/context.h"
#include "core/model_interface.h"

namespace convoy {

// Returns "" if loss and weight of `batch` are the sums of those of two unequal parts of it; otherwise both values and
// advice. Also returns "" if the parts cannot be evaluated, or for a batch of one row. Evaluates the whole model on
// this rank.
// `splits`: the model evaluates each part, because ranks divide the rows of an update. Otherwise only the loss gets
// parts of the outputs, because blocks may mix rows.
std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits);

}  // namespace convoy
