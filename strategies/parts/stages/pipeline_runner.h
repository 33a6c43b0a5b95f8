// The Runner of a model that is cut along its depth over the axis `pipeline`.
//
// Each rank has one stage, or several chunks (virtual stages) round robin, and executes its list of a schedule
// (parts/stages/schedule.h); boundaries are crossed by messages (parts/stages/rank_link.h), ties by copies (parts/stages/ties.h). Evaluation goes
// forward only, in as many slices as a step has micro-batches; the last stage's rank tells the names of the metrics once.
#pragma once
#include <memory>

#include "strategies/parts/runner.h"

namespace convoy {

struct PipelineOptions {
  Options section;            // where `stages` stands, see stage_ranges
  std::string schedule;       // gpipe, 1f1b, interleaved
  int64_t chunks = 1;         // stages a rank
  int64_t micro_batches = 1;  // slices of an evaluation batch
};
// Of a section that has pipeline_options() and micro_batches.
PipelineOptions pipeline_options(const Options& section);

// `base` says what the parts have in common: layers, counts. Takes part in collectives of the axis. Throws ConfigError at
// `stages` for blocks that do not fit the model.
std::unique_ptr<Runner> make_pipeline_runner(const Context& context, ModelPtr model,
                                             std::shared_ptr<const LossFunction> loss, const PipelineOptions& options,
                                             const PartRequest& base = {});

}  // namespace convoy
