#include "strategies/parts/row_tables_entry.h"

#include "core/optim/row_entry.h"
#include "strategies/parts/row_shares_entry.h"

namespace convoy {

bool rows_by_size(int64_t table_rows, int64_t batch_rows) {
  return table_rows >= 65536 && table_rows >= 50 * batch_rows;
}

void check_row_tables(const RunConfig& config, bool supported) {
  const Options& model = config.model.options;
  const bool shares = asks_for_shares(model);
  if (!shares && (!model.json().contains("rows") || model.at("rows") != true)) return;
  if (!supported)
    model.fail("rows",
               str("is ", shares ? "sharded" : "true", ", and strategy ", config.strategy.name,
                   " keeps embeddings dense; leave it auto, or take a strategy whose ranks hold the whole model"));
  const Options& optimizer = config.optimizer.options;
  const RowObstacle obstacle = row_obstacle(config.optimizer.name, optimizer, optimizer.real("weight_decay"));
  if (!obstacle.key.empty()) optimizer.fail(obstacle.key, obstacle.reason);
}

}  // namespace convoy
