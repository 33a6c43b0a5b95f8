// `convoy verify --against`: compares a model with one of Python, layer by layer in the order of the forward pass.
//
// The folder was written by tools/dump_reference.py: weights as for model.init_from, and reference.safetensors with
//   batch/FIELD                     one batch, in the fields of convoy's data
//   input/MODULE, output/MODULE     of each module with parameters, by its name in Python
//   loss                            mean over rows or tokens
//   gradient/NAME                   of that loss, by parameter
// Threads: one. Failure: Error(config) for another model or batch, Error(corrupt_data) for a damaged file.
#pragma once
#include <string>

#include "core/base/options.h"
#include "core/config/run_config.h"
#include "core/registry.h"

namespace convoy {

// Returns {"precision": of the weights, "tensors": a list of {"what", "name", "theirs", "shape", "relative", "fault"}
// in the order of the computation: inputs and outputs of layers, the loss, then gradients from the last layer to the
// first; "skipped": layers that Python did not record}. `relative` is null if it is not finite.
Json compare_with_reference(RunConfig config, const Registry& registry, const std::string& folder);

}  // namespace convoy
