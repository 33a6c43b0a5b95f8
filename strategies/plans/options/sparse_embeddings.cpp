#include "strategies/plans/options/sparse_embeddings.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/text.h"
#include "core/optim/catalogue/catalogue.h"
#include "strategies/plans/options/step_options.h"

namespace convoy {
namespace {

constexpr int64_t least_rows = 65536;
constexpr double most_of_table = 0.25;

// Ids of a table that an update looks up, with `lookups` per row of a batch. Summed gradients count the ids of all
// ranks, local updates only the rank's. The synchronisation frequency has no influence: a synchronisation sends at most
// all rows, but a dense table is swept in every update.
double update_lookups(const RunConfig& config, int ranks, const std::string& table, int64_t lookups) {
  const BatchSize& batch = config.train.batch;
  const SyncPolicy policy = sync_policy(config.strategy.options);
  const SyncGroup& group = policy.groups[policy.group_of(table)];
  const bool local = group.what != SyncKind::gradients && group.start_after == 0;
  double rows = double(batch.rows);
  if (batch.per_rank && !local) rows *= ranks;
  if (!batch.per_rank && local) rows = std::ceil(rows / ranks);
  return rows * double(policy.every) * double(lookups);
}

// The weight decay of a parameter, and its key.
struct Decay {
  double value = 0;
  std::string key = "optimizer.weight_decay";
};
Decay decay_of(const OptimizerOptions& options, const std::string& parameter) {
  const std::optional<size_t> group = options.group_of(parameter);
  if (!group || !options.groups[*group].weight_decay) return {options.weight_decay};
  return {*options.groups[*group].weight_decay, str("optimizer.groups.", *group, ".weight_decay")};
}

// Decides for `rows: auto`: true for a table of at least 65,536 rows if an update looks up at most a quarter of them.
// Look-ups repeat ids: a quarter of them touches about a fifth of the rows. A smaller table is cheaper to update as a
// whole: single rows have fixed costs, and the rows of all ranks, which every rank gathers, may exceed the table.
bool rows_by_size(int64_t table_rows, double lookups) {
  return table_rows >= least_rows && lookups <= most_of_table * double(table_rows);
}

}  // namespace

SparseDecision sparse_decision(const RunConfig& config, int ranks, const TableSize& table) {
  SparseDecision decision;
  const double lookups = update_lookups(config, ranks, table.name, table.lookups);
  decision.large = rows_by_size(table.rows, lookups);
  const OptimizerOptions optimizer = optimizer_options(config.optimizer);
  const Decay decay = decay_of(optimizer, table.name);
  const SparseObstacle obstacle = row_obstacle(optimizer, decay.value);
  if (!sync_policy(config.strategy.options).allows_rows(table.name)) {
    decision.reason = "an outer step of diloco moves all rows";
  } else if (!obstacle.key.empty()) {
    decision.key = obstacle.key == "weight_decay" ? decay.key : "optimizer." + obstacle.key;
    decision.reason = obstacle.reason;
  } else if (!table.asked && !decision.large) {
    decision.reason = str("auto takes rows from ", least_rows,
                          " rows on where an update looks up a quarter of them at most, and here it looks up ",
                          std::llround(lookups));
  } else {
    decision.rows = true;
  }
  return decision;
}

RowsOption rows_option(const Options& model) {
  const Json rows = model.json().value("rows", Json("auto"));
  if (rows == "sharded") return RowsOption::sharded;
  return rows == true ? RowsOption::sparse : rows == false ? RowsOption::dense : RowsOption::automatic;
}

}  // namespace convoy
