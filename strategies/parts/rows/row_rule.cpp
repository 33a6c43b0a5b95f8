#include "strategies/parts/rows/row_rule.h"

#include "core/error.h"
#include "core/optim/optimizer.h"
#include "core/optim/row_entry.h"
#include "strategies/parts/rows/row_tables_entry.h"

namespace convoy {

RowRule::RowRule(const RunConfig& config, int ranks)
    : optimizer_(config.optimizer), sync_(sync_policy(config.strategy.options.json())) {
  update_rows_ = config.train.batch.rows * (config.train.batch.per_rank ? ranks : 1) * sync_.every;
}

bool RowRule::applies(const std::string& name, int64_t rows, EmbeddingOptions::Rows asked) const {
  if (asked == EmbeddingOptions::Rows::dense || !sync_.allows_rows(name)) return false;
  const double decay = group_settings(optimizer_, name).weight_decay;
  const RowObstacle obstacle = row_obstacle(optimizer_.name, optimizer_.options, decay);
  if (asked == EmbeddingOptions::Rows::automatic) return obstacle.key.empty() && rows_by_size(rows, update_rows_);
  if (!obstacle.key.empty())
    throw Error(Failure::config, convoy::str("row table ", name, ": optimizer.", obstacle.key, " ", obstacle.reason));
  return true;
}

}  // namespace convoy
