// RowRule: which of a model's embeddings a strategy keeps as row tables (parts/rows/row_table.h).
#pragma once
#include <memory>
#include <string>

#include "core/config/run_config.h"
#include "core/layers.h"
#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {

class RowRule {
 public:
  // `ranks`: of the data axis.
  RowRule(const RunConfig& config, int ranks);
  // Error(config) where one is asked for that the optimizer cannot update.
  bool applies(const std::string& name, int64_t rows, EmbeddingOptions::Rows asked) const;

 private:
  Component optimizer_;
  int64_t update_rows_ = 0;  // of all ranks
  SyncPolicy sync_;
};

}  // namespace convoy
