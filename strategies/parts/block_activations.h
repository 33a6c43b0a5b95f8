// What the blocks of a model keep, hand on and exchange per row, found by running one micro-batch forward and
// backward.
#pragma once
#include <memory>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"
#include "strategies/catalogue.h"

namespace convoy {

// The tensors of a measured step: shapes alone, which takes no memory and no time (fake_tensors.h), or values too.
enum class MeasuredTensors { fake, real };

// Fills in row_output_bytes, row_saved_bytes, what its backward works with (row_working_bytes, working_bytes) and what a
// tensor group makes of its layers (row_cut_*, cut_exchanges), by a step of `batch` and one of half its rows on the CPU, in
// the configuration's precision. A block's activations are what LibTorch's allocator still holds behind its forward; its
// outputs count with the block that takes them, those of the last one with the loss. This thread has to make every
// allocation: at::set_num_threads(1) before.
void measure_activations(const RunConfig& config, const ModelPtr& model, std::shared_ptr<const LossFunction> loss,
                         const Batch& batch, Description& description, MeasuredTensors tensors = MeasuredTensors::fake);

// Fills in how many rows of tables are looked up, by a step of some of the data's, and how often they are the same ones in
// the steps after it.
void measure_lookups(const RunConfig& config, const ModelPtr& model, std::shared_ptr<const LossFunction> loss,
                     const Dataset& data, Description& description, MeasuredTensors tensors = MeasuredTensors::fake);

}  // namespace convoy
