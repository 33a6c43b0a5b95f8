// Checks of what a model and its loss hand over: an author's mistake ends with its name, and not in wrong figures.
// Failure: Error(training). Cheap: shapes and dtypes only, nothing is read from a device.
#pragma once
#include <string>
#include <vector>

#include "core/model_interface.h"

namespace convoy {

// Checks a block's output: at least one tensor, all of them defined.
void check_outputs(const TensorList& outputs);
void check_examples(const Examples& examples);

// Sum and weight are real numbers of shape [], or [members] where the layers have members. The weight is without a graph.
Loss checked_loss(Loss loss, const Layers& layers);
// A training loss of `rows` rows has a graph. One that counts nothing (weight zero) need not.
void check_graph(const Loss& loss, int64_t rows);

// As float64 on the layers' device. Names are unique, of letters, digits and _ - . @ / + % :, and none of those that
// convoy gives itself ("loss", "out_of_fold_…"); shapes as for a loss.
std::vector<Metric> checked_metrics(std::vector<Metric> metrics, const Layers& layers);

}  // namespace convoy
