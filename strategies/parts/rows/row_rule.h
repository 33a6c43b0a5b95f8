// RowRule: which of a model's embeddings a strategy keeps as row tables (parts/rows/row_table.h).
#pragma once
#include <set>
#include <string>

#include "core/config/run_config.h"
#include "core/layers.h"

namespace convoy {

class RowRule {
 public:
  // `ranks`: of the data axis. `tells`: warns of a table whose size alone would make it one of rows.
  RowRule(const RunConfig& config, int ranks, bool tells = false) : config_(config), ranks_(ranks), tells_(tells) {}
  // Error(config) where one is asked for that the optimizer cannot update.
  bool applies(const std::string& name, int64_t rows, const EmbeddingOptions& options) const;

 private:
  RunConfig config_;
  int ranks_;
  bool tells_;
  mutable std::set<std::string> told_;
};

}  // namespace convoy
