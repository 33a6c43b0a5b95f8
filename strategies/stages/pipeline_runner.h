// StepRunner for pipeline parallelism over the axis `pipeline`.
//
// Each rank has one stage, or several virtual stages round robin. It executes its part of a schedule
// (strategies/plans/schedule.h). Messages cross boundaries (rank_link.h); tied parameters are copied
// (tied_parameters.h). Evaluation runs forward only, with as many micro-batches as a step. The rank of the last stage
// sends the names of the metrics once.
#pragma once
#include <memory>

#include "strategies/common/step/mesh_strategy.h"

namespace convoy {

// `options`: the section, with pipeline_section_options() and micro_batches. `base`: layers and counts, which all parts
// share. Collective along the axis. Throws ConfigError at `stages` if the blocks do not match the model.
std::unique_ptr<StepRunner> make_pipeline_runner(const Context& context, ModelPtr model, LossPtr loss,
                                                 const Options& options, const PartRequest& base = {});

}  // namespace convoy
