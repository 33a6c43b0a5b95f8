// What strategies that cut a model along its depth over ranks share without LibTorch: options, refusals, costs.
#pragma once
#include <string>
#include <vector>

#include "strategies/catalogue.h"
#include "strategies/parts/stages/stages.h"

namespace convoy {

// schedule, stages, virtual.
std::vector<Option> pipeline_section_options();
// How many slices of each global batch go through the stages one behind the other.
Option pipeline_micro_batches_option();

// Stages a rank: `virtual`, by default two for schedule interleaved and one for the others.
int64_t chunks_of(const Options& section);
// As many ranks as `stages` lists, 0 for auto.
int listed_ranks(const Options& section);
// What is wrong before the model is known: throws ConfigError at the key.
void check_pipeline(const Options& section, int ranks);

// One rank of a pipeline of `ranks`, as its formulas evaluate; rows: of a data rank's share of a global batch. Bytes are
// those of boundaries and ties; what the data axis adds is not in it.
struct PipelineShape {
  std::string schedule;
  int ranks = 1;
  int chunks = 1;
  int micro_batches = 1;
  int64_t every = 1;  // steps an update
  double rows = 0;
  int moments = 2;
  Json strategy;                        // resolved section, for `recompute`
  int tensor = 1;                       // ranks that share out the layers of each stage
  std::vector<double> stage_time = {};  // of each stage, of one pass's time through the whole model on one rank
  int tie_shares = 1;  // ranks along the data axis that divide a tied gradient before it is summed over stages
};
// Of a job whose strategy has pipeline_section_options(), micro_batches and sync.
PipelineShape pipeline_shape(const Job& job);
RankCost pipeline_cost(const PipelineShape& shape, const std::vector<BlockRange>& stages, const Description& model,
                       int rank);

// Which blocks each stage has and which ranks of the job hold them, and what these do in which order: lines for people.
std::string pipeline_text(const Job& job, const Description& model);

}  // namespace convoy
