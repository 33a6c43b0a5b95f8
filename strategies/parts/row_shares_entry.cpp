#include "strategies/parts/row_shares_entry.h"

#include <cmath>

#include "strategies/parts/row_numbers.h"

namespace convoy {
namespace {

double bytes_of_number(const DealtTable& table) {
  return static_cast<double>(number_bytes(static_cast<int64_t>(table.rows)));
}

double padded_bytes(double bytes) { return static_cast<double>(padded(std::llround(std::ceil(bytes)))); }

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
  // Numbers and gradients in one; on an accelerator the host has to know their counts first.
  cost.messages = ranks > 1 ? 1 : 0;
  cost.bytes_sent = others * (dense_bytes + 8 * static_cast<double>(tables.size()));
  for (const DealtTable& table : tables) {
    const bool narrow = table.sent_bytes > 0;
    const double values = table.touched * table.width * (narrow ? table.sent_bytes : table.element_bytes);
    cost.bytes_sent +=
        others * (padded_bytes(table.touched * bytes_of_number(table)) + padded_bytes(values) + (narrow ? 8 : 0));
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
    cost.bytes_sent +=
        others / ranks * table.touched * (bytes_of_number(table) + 2 * table.width * table.element_bytes);
    cost.held_rows += table.rows / ranks;
    cost.updated_rows += together(table, ranks) / ranks;
  }
  return cost;
}

}  // namespace convoy
