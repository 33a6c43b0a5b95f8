#include "strategies/parts/rows/row_rule.h"

#include "core/error.h"
#include "core/log.h"
#include "strategies/parts/rows/row_tables_entry.h"

namespace convoy {

bool RowRule::applies(const std::string& name, int64_t rows, const EmbeddingOptions& options) const {
  if (options.rows == EmbeddingOptions::Rows::dense) return false;
  TableSize table;
  table.name = name;
  table.rows = rows;
  table.asked = options.rows == EmbeddingOptions::Rows::rows;
  table.lookups = options.lookups;
  const RowDecision decision = row_decision(config_, ranks_, table);
  if (table.asked && !decision.key.empty())
    throw Error(Failure::config, convoy::str(decision.key, ": ", decision.reason, "; ", name, " is a row table"));
  if (!decision.rows && decision.large && !decision.key.empty() && tells_ && told_.insert(name).second)
    log::warning(convoy::str(name, " of ", rows, " rows stays dense, and each update sweeps over all of them: ",
                             decision.key, " ", decision.reason));
  return decision.rows;
}

}  // namespace convoy
