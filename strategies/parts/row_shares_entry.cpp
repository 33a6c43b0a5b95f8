#include "strategies/parts/row_shares_entry.h"

#include <cmath>
#include <limits>

namespace convoy {
namespace {

double number_bytes(const DealtTable& table) {
  return table.rows <= static_cast<double>(std::numeric_limits<int32_t>::max()) ? 4 : 8;
}

// Different rows that several ranks touch together, each of them as many at random; fewer where some are frequent.
double together(const DealtTable& table, int ranks) {
  if (table.rows <= 0) return 0;
  return table.rows * (1 - std::pow(1 - std::min(1.0, table.touched / table.rows), ranks));
}

}  // namespace

bool asks_for_shares(const Options& model) {
  const auto found = model.json().find("rows");
  return found != model.json().end() && *found == "sharded";
}

RowCost gathered_rows_cost(const std::vector<DealtTable>& tables, int ranks, double dense_bytes) {
  const double others = ranks - 1;
  RowCost cost;
  cost.messages = ranks > 1 ? 2 : 0;
  cost.bytes_sent = others * (dense_bytes + 8 * static_cast<double>(tables.size()));
  for (const DealtTable& table : tables) {
    cost.bytes_sent += others * table.touched * (number_bytes(table) + table.width * table.element_bytes);
    cost.held_rows += table.rows;
    cost.updated_rows += together(table, ranks);
  }
  return cost;
}

RowCost shared_rows_cost(const std::vector<DealtTable>& tables, int ranks, double dense_bytes) {
  const double others = ranks - 1;
  RowCost cost;
  // Numbers, values, gradients, and figures of the norm.
  cost.messages = ranks > 1 ? 4 : 0;
  cost.bytes_sent = others * (dense_bytes + 8 * static_cast<double>(tables.size()));
  for (const DealtTable& table : tables) {
    cost.bytes_sent += others / ranks * table.touched * (number_bytes(table) + 2 * table.width * table.element_bytes);
    cost.held_rows += table.rows / ranks;
    cost.updated_rows += together(table, ranks) / ranks;
  }
  return cost;
}

}  // namespace convoy
