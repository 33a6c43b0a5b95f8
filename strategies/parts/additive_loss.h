// Checks that a loss is a sum over rows, so that shares, micro-batches and accumulated steps add up.
#pragma once
#include <memory>
#include <string>

#include "core/context.h"
#include "core/model_interface.h"

namespace convoy {

// "" where the loss of `batch` is the sum of the losses of two unequal parts of it, and its weight the sum of their weights;
// else both figures and what to change. Evaluates the model on this rank, whole. "" too where the model cannot be evaluated
// on such a batch, or the batch has one row.
std::string loss_fault(const Context& context, const ModelPtr& model, const std::shared_ptr<const LossFunction>& loss,
                       const Batch& batch);

}  // namespace convoy
