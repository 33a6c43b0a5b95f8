// Fills the registry with the strategies; the only file outside this folder's sources that names their factories.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/batch.h"
#include "core/registry.h"
#include "core/strategy.h"
#include "strategies/common/memory/block_activations.h"
#include "strategies/common/model/model_trials.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

void register_strategies(Registry& registry);

// Describes the model's blocks as far as possible without running them.
ModelDescription describe_model(const Model& model, const std::string& precision);

// Returns the names of a fresh model's metrics on the CPU, in order, from an evaluation of the batch. Throws the
// model's exceptions.
std::vector<std::string> metric_names(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch);

// Checks that a loss is a sum over rows, so that shares, micro-batches and accumulated steps add up. Returns "" if loss
// and weight of `batch` are the sums of those of two unequal parts of it; otherwise both values and advice. Also
// returns "" if the parts cannot be evaluated, or for a batch of one row. Evaluates the whole model on this rank.
// `splits`: the model evaluates each part, because ranks divide the rows of an update. Otherwise only the loss gets
// parts of the outputs, because blocks may mix rows.
std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits);

}  // namespace convoy
