// Checks of the results of a model and its loss, so that an author's mistake ends with a clear error.
// Failure: Error(training). Cheap: shapes and dtypes only, nothing is read from a device.
#pragma once
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/model_interface.h"

namespace convoy {

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
