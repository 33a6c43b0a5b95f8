#include "strategies/parts/row_tables.h"

#include "strategies/parts/row_table.h"

namespace convoy {

std::vector<ParameterPtr> tables_of(const std::vector<ModelPart*>& parts) {
  std::vector<ParameterPtr> all;
  for (const ModelPart* part : parts) all.insert(all.end(), part->tables().begin(), part->tables().end());
  return all;
}

void begin_rows(const std::vector<ParameterPtr>& tables) {
  for (const ParameterPtr& table : tables) table->table->begin();
}

void take_rows(const std::vector<ParameterPtr>& tables) {
  for (const ParameterPtr& table : tables) table->table->set_update(table->table->touched());
}

}  // namespace convoy
