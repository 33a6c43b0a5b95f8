#include "strategies/parts/row_rule.h"

#include "core/error.h"
#include "core/optim/optimizer.h"
#include "core/optim/row_entry.h"
#include "strategies/parts/row_tables_entry.h"

namespace convoy {

RowRule::RowRule(const RunConfig& config)
    : optimizer_(config.optimizer),
      batch_rows_(config.train.batch.rows),
      sync_(sync_policy(config.strategy.options.json())) {}

bool RowRule::applies(const std::string& name, int64_t rows, EmbeddingOptions::Rows asked) const {
  if (asked == EmbeddingOptions::Rows::dense || !sync_.allows_rows(name)) return false;
  const double decay = group_settings(optimizer_, name).weight_decay;
  const RowObstacle obstacle = row_obstacle(optimizer_.name, optimizer_.options, decay);
  if (asked == EmbeddingOptions::Rows::automatic) return obstacle.key.empty() && rows_by_size(rows, batch_rows_);
  if (!obstacle.key.empty())
    throw Error(Failure::config, convoy::str("row table ", name, ": optimizer.", obstacle.key, " ", obstacle.reason));
  return true;
}

}  // namespace convoy
