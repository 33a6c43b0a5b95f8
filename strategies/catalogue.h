// Strategies without LibTorch: options, where ranks go, and what a step costs.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/config/run_config.h"
#include "core/plan.h"

namespace convoy {

// Found by `convoy-rank --describe`: sizes of a model, per block.
struct BlockDescription {
  std::string name;
  int64_t parameters = 0;        // elements
  int64_t buffers = 0;           // elements
  double row_flops = 0;          // forward, per row
  int64_t row_output_bytes = 0;  // handed to the next block, per row
  int64_t row_saved_bytes = 0;   // kept for backward, per row
  // Of layers that a tensor group shares out (linear layers with a cut, embeddings):
  int64_t cut_parameters = 0;        // elements, of `parameters`
  int64_t row_cut_input_bytes = 0;   // inputs of column-cut ones that want gradients, per row
  int64_t row_cut_output_bytes = 0;  // outputs of row-cut ones and embeddings, per row
  int64_t row_cut_saved_bytes = 0;   // of row_saved_bytes: between column- and row-cut ones, per row
  int64_t cut_exchanges = 0;         // messages a micro-batch, forward and backward
};
struct Description {
  std::vector<BlockDescription> blocks;
  int64_t element_bytes = 4;
};

// Per rank, as the strategy's formulas evaluate.
struct RankCost {
  double bytes_sent_per_step = 0;
  double messages_per_step = 0;
  double parameter_bytes = 0, gradient_bytes = 0, moment_bytes = 0, buffer_bytes = 0, activation_bytes = 0;
};

struct StrategyEntry : Entry {
  std::function<Plan(const RunConfig&, const Topology&, const PlanRequest&)>
      plan;  // throws ConfigError with the reason
  std::function<std::vector<RankCost>(const Job&, const Description&)> cost;
};

const std::vector<StrategyEntry>& strategy_catalogue();
std::vector<Entry> strategy_entries();  // the same for Catalogues
const StrategyEntry& strategy_entry(const std::string& name);
// The one that all others are held against.
const StrategyEntry& reference_strategy();

}  // namespace convoy
