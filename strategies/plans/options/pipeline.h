// Pipeline parallelism without LibTorch: options, checks and costs for strategies with stages.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/data_axis.h"
#include "strategies/plans/schedule.h"
#include "strategies/plans/stages.h"

namespace convoy {

// Returns the options schedule, stages, virtual.
std::vector<Option> pipeline_section_options();
// Returns the option for the number of micro-batches of a global batch that flow through the stages.
Option pipeline_micro_batches_option();

// Typed values of pipeline_section_options().
struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;
  int virtual_stages = 1;                               // per rank
  bool auto_virtual = true;                             // `virtual` is auto, so the schedule chose virtual_stages
  std::optional<std::vector<std::string>> stages = {};  // none: auto
  Options section = {};                                 // for errors
};
PipelineOptions pipeline_options(const Options& strategy);
// Returns the blocks of each stage of a job. Throws ConfigError as stage_ranges does.
std::vector<BlockRange> job_stages(const JobPlan& job, const ModelDescription& model);
// Returns the number of ranks that `stages` lists; 0 for auto.
int listed_ranks(const PipelineOptions& options);
// Makes the checks that do not need the model. Throws ConfigError at the key.
void check_pipeline(const PipelineOptions& options, int ranks);

// Inputs of the cost formulas for one pipeline of `ranks` ranks. `rows`: rows of a data rank's share of a global batch.
// The cost counts boundaries and tied parameters, but not the data axis.
struct PipelineShape {
  PipelineOptions options;
  int ranks = 1;
  double rows = 0;
  int moments = 2;
  StepOptions step = {};
  int tensor = 1;                       // ranks that shard the layers of each stage
  std::vector<double> stage_time = {};  // by stage: share of the time of one pass of the whole model on one rank
  int tie_shares = 1;  // ranks along the data axis that divide a tied gradient before its sum over stages
};
// Reads the shape from a job with pipeline_section_options(), micro_batches and sync.
PipelineShape pipeline_shape(const JobPlan& job);
// Returns the costs by index along the pipeline axis.
std::vector<RankCost> pipeline_costs(const PipelineShape& shape, const std::vector<BlockRange>& stages,
                                     const ModelDescription& model);

// Returns lines for people: blocks and ranks of each stage, and the actions of each rank in order.
std::string pipeline_text(const JobPlan& job, const ModelDescription& model);

}  // namespace convoy
