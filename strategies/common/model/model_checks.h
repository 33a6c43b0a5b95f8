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

// Returns "" if loss and weight of `batch` are the sums of those of two unequal slices of it, else both values and
// advice.
// `splits`: the model evaluates each slice, because rows of an update are divided; else only the loss is given slices
// of the outputs, because blocks may mix rows. Evaluates the whole model on this rank. Returns "" too if the slices
// cannot be evaluated, or for a batch of one row.
std::string loss_fault(const Context& context, const ModelPtr& model, const LossPtr& loss, const Batch& batch,
                       bool splits);

// Checks a block's output: at least one tensor, all of them defined.
void check_outputs(const TensorList& outputs);
void check_examples(const Examples& examples);

// Sum and weight are real numbers of shape [], or [members] if the layers have members. The result's weight has no
// graph.
Loss checked_loss(Loss loss, const Layers& layers);
// A training loss of `rows` rows must have a graph, except with weight zero.
void check_graph(const Loss& loss, int64_t rows);

// Returns the metrics as float64 on the layers' device. Names are unique, of letters, digits and _ - . @ / + % :, and
// different from names that convoy uses ("loss", "out_of_fold_…"). Shapes are as for a loss.
std::vector<Metric> checked_metrics(std::vector<Metric> metrics, const Layers& layers);

}  // namespace convoy
