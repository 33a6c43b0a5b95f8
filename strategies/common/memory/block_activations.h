// Measures activations, outputs and exchanges of the blocks of a model per row, with one forward and backward.
#pragma once
#include <memory>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// Tensors of a measured step: fake ones (fake_tensors.h), which need no memory and no time for values, or real ones.
enum class MeasuredTensors { fake, real };

// Sets row_output_bytes, row_saved_bytes, the working bytes of backward (row_working_bytes, working_bytes) and the
// costs of a tensor group (row_cut_*, cut_exchanges). Runs a step of `batch` and one of half its rows on the CPU, in
// the configured precision. A block's activations are the bytes that remain allocated after its forward. Outputs of a
// block count for the next block; outputs of the last block count for the loss. Call at::set_num_threads(1) before,
// because this thread must make every allocation.
void measure_activations(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch,
                         ModelDescription& description, MeasuredTensors tensors = MeasuredTensors::fake);

// Sets how many table rows a step looks up, and how often rows repeat in later steps. Runs one step with random rows of
// the data.
void measure_lookups(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Dataset& data,
                     ModelDescription& description, MeasuredTensors tensors = MeasuredTensors::fake);

}  // namespace convoy
