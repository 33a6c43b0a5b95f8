// Measures activations, outputs and exchanges of the blocks of a model, per row, by one forward and backward.
#pragma once
#include <memory>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "strategies/plans/catalogue.h"

namespace convoy {

// Tensors of a measured step: fake ones (fake_tensors.h), without memory and time for values, or real ones.
enum class MeasuredTensors { fake, real };

// Sets row_output_bytes, row_saved_bytes, working bytes of backward (row_working_bytes, working_bytes) and costs of a
// tensor group (row_cut_*, cut_exchanges). It runs a step of `batch` and one of half its rows on the CPU, in the
// configured precision. Activations of a block are the bytes that remain allocated after its forward. A block's outputs
// count for the next block, the last block's outputs for the loss. Requires at::set_num_threads(1) before, since this
// thread must make every allocation.
void measure_activations(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Batch& batch,
                         ModelDescription& description, MeasuredTensors tensors = MeasuredTensors::fake);

// Sets the number of table rows that are looked up, from a step on some rows of the data. Also sets how often rows
// repeat in later steps.
void measure_lookups(const RunConfig& config, const ModelPtr& model, LossPtr loss, const Dataset& data,
                     ModelDescription& description, MeasuredTensors tensors = MeasuredTensors::fake);

}  // namespace convoy
