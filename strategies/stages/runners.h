// StepRunners of models in several parts: stages on ranks, or blocks on the devices of one rank.
#pragma once
#include <memory>

#include "strategies/common/step/mesh_strategy.h"
#include "strategies/plans/options/devices.h"
#include "strategies/plans/options/pipeline.h"

namespace convoy {

// StepRunner for pipeline parallelism over the axis `pipeline`.
//
// Each rank has one stage, or several virtual stages round robin. It executes its part of a schedule
// (strategies/plans/schedule.h). Messages cross boundaries (pipeline_runner.cpp); tied parameters are copied
// (stage_loop.h). Evaluation runs forward only, with as many micro-batches as a step. The rank of the last stage
// sends the names of the metrics once.
// `base`: layers and counts, which all parts share. Collective along the axis. Throws ConfigError at `stages` if the
// blocks do not match the model.
std::unique_ptr<StepRunner> make_pipeline_runner(const Context& context, ModelPtr model, LossPtr loss,
                                                 const PipelineOptions& options, int64_t micro_batches,
                                                 const PartRequest& base);

// StepRunner of a rank with several devices. Each device has consecutive blocks and a thread, which executes the
// device's part of a schedule (strategies/plans/schedule.h, placed_schedule). Activations and gradients pass between
// threads; they are copied if devices have separate memory.
//
// On the CPU a device is a set of cores, and its thread is bound to them. Context::add_to_summary gets the actual cores
// and the blocks.
// Hooks run in the devices' threads, maybe at once for different parts. The loss hook runs in the thread of the last
// block, with the loss on the rank's main device. An exception in any thread stops all of them; the rank's thread
// rethrows it.
// Throws ConfigError if the placement of blocks (place_blocks) does not match the model.
std::unique_ptr<StepRunner> make_device_runner(const Context& context, ModelPtr model, LossPtr loss,
                                               const DeviceOptions& options, int64_t micro_batches,
                                               const PartRequest& base);

}  // namespace convoy
