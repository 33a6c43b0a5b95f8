// The list of strategies. A new one is its `X_entry.cpp` and a line here, its class and a line in registry.cpp.
#include "strategies/catalogue.h"

#include "core/error.h"
#include "strategies/parts/replicas/replicated_entry.h"
#include "strategies/parts/replicas/sync_entry.h"
#include "strategies/parts/rows/row_tables_entry.h"

namespace convoy {

StrategyEntry single_entry();
StrategyEntry data_parallel_entry();
StrategyEntry ddp_entry();
StrategyEntry model_parallel_entry();
StrategyEntry tensor_parallel_entry();
StrategyEntry pipeline_entry();
StrategyEntry fsdp_entry();
StrategyEntry hybrid_entry();
StrategyEntry ensemble_entry();
StrategyEntry independent_entry();

namespace {

// Blocks that `recompute` names; empty where it is a word.
std::vector<std::string> recomputed_names(const Job& job) {
  const Json recompute = job.config.at("strategy").value("recompute", Json("none"));
  if (!recompute.is_array()) return {};
  return recompute.get<std::vector<std::string>>();
}

// One rank along `data` sees the whole batch already.
bool synchronises_norms(const Job& job) {
  return job.config.at("strategy").value("batch_norm", "") == "sync" && job.mesh.degree("data") > 1;
}

// Only layers that come from Layers can be synchronised: LibTorch's modules see the rank's own rows.
void check_own_norms(const Job& job, const Description& description) {
  if (!synchronises_norms(job)) return;
  for (const BlockDescription& block : description.blocks)
    if (!block.own_norms.empty())
      throw ConfigError(Mark{}, "strategy.batch_norm",
                        str("is sync, and block ", block.name, " makes ", join(block.own_norms, ", "),
                            " itself, whose figures are those of each rank's own rows; take the layer from "
                            "Layers::batch_norm, or take batch_norm: local"));
}

}  // namespace

const char* name_of(Exchange kind) {
  switch (kind) {
    case Exchange::all_reduce:
      return "all_reduce";
    case Exchange::gather:
      return "all_gather";
    case Exchange::scatter:
      return "reduce_scatter";
    case Exchange::send:
      return "send";
  }
  return "?";
}

bool wants_blocks(const StrategyEntry& entry, const Job& job) {
  return entry.check || entry.notes || (entry.tables && rows_want_blocks(job)) || !recomputed_names(job).empty() ||
         synchronises_norms(job) || !sync_policy(job.config.at("strategy")).patterns.empty();
}

std::vector<std::string> check_blocks(const StrategyEntry& entry, const Job& job, const Description& description) {
  std::vector<std::string> names;
  for (const BlockDescription& block : description.blocks) names.push_back(block.name);
  check_recomputed_names(recomputed_names(job), names);
  check_sync_names(job, description);
  check_own_norms(job, description);
  if (entry.tables) check_row_blocks(job, description);
  if (entry.check) entry.check(job, description);
  return entry.notes ? entry.notes(job, description) : std::vector<std::string>();
}

const std::vector<StrategyEntry>& strategy_catalogue() {
  static const std::vector<StrategyEntry> entries{
      single_entry(),   data_parallel_entry(), ddp_entry(),    model_parallel_entry(), tensor_parallel_entry(),
      pipeline_entry(), fsdp_entry(),          hybrid_entry(), ensemble_entry(),       independent_entry(),
  };
  return entries;
}

std::vector<Entry> strategy_entries() {
  const auto& entries = strategy_catalogue();
  return {entries.begin(), entries.end()};
}

const StrategyEntry& strategy_entry(const std::string& name) {
  for (const StrategyEntry& entry : strategy_catalogue()) {
    if (entry.name == name) return entry;
  }
  std::vector<std::string> names;
  for (const StrategyEntry& entry : strategy_catalogue()) names.push_back(entry.name);
  const std::string near = nearest(name, names);
  throw Error(Failure::config, str("strategy.name: there is no strategy '", name, "'; there are ", join(names, ", "),
                                   near.empty() ? "" : "; did you mean " + near + "?"));
}

const StrategyEntry& reference_strategy() { return strategy_entry("single"); }
const StrategyEntry& plain_strategy() { return strategy_entry("ddp"); }

}  // namespace convoy
