// Checks of the results of a model and its loss, so that an author's mistake ends with a clear error.
// Failure: Error(training). Cheap: shapes and dtypes only, nothing is read from a device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/context.h"
#include "core/model_interface.h"

namespace convoy {

// Checks that a loss is a sum over rows, so that shares, micro-batches and accumulated steps add up.

// Returns "" if loss and weight of `batch` are the sums of those of two unequal parts of it; otherwise both values and
// advice. Also returns "" if the parts cannot be evaluated, or for a batch of one row. Evaluates the whole model on
// this rank.
// `splits`: the model evaluates each part, because ranks divide the rows of an update. Otherwise only the loss gets
// parts of the outputs, because blocks may mix rows.
std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits);

// Checks a block's output: at least one tensor, all of them defined.
void check_outputs(const TensorList& outputs);
void check_examples(const Examples& examples);

// Checks that sum and weight are real numbers of shape [], or [members] if the layers have members. Returns a weight
// without graph.
Loss checked_loss(Loss loss, const Layers& layers);
// Checks that a training loss of `rows` rows has a graph or weight zero.
void check_graph(const Loss& loss, int64_t rows);

// Returns the metrics as float64 on the layers' device. Names must be unique, consist of letters, digits and _ - . @ /
// + % :, and differ from names that convoy uses ("loss", "out_of_fold_…"). Shapes are those of a loss.
std::vector<Metric> checked_metrics(std::vector<Metric> metrics, const Layers& layers);

}  // namespace convoy
