#include "strategies/parts/rows/row_shares_entry.h"

#include <cmath>

#include "strategies/parts/rows/row_numbers.h"

namespace convoy {
namespace {

double bytes_of_number(const DealtTable& table) {
  return static_cast<double>(number_bytes(static_cast<int64_t>(table.rows)));
}

double gradient_element(const DealtTable& table) {
  return table.sent_bytes > 0 ? table.sent_bytes : table.element_bytes;
}

double gradient_head(const DealtTable& table) { return table.sent_bytes > 0 ? narrow_head : 0; }

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

RowCost gathered_rows_cost(const std::vector<DealtTable>& tables, int ranks, double dense_bytes, bool gpus) {
  const double others = ranks - 1;
  RowCost cost;
  // Counts, numbers and gradients in one; of accelerators the host has to know the counts first.
  cost.messages = ranks > 1 ? (gpus ? 2 : 1) : 0;
  cost.bytes_sent = others * (dense_bytes + 8 * static_cast<double>(tables.size()));
  for (const DealtTable& table : tables) {
    cost.bytes_sent +=
        others * (padded_bytes(table.touched * bytes_of_number(table)) +
                  padded_bytes(table.touched * table.width * gradient_element(table)) + gradient_head(table));
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
    cost.bytes_sent += others / ranks * table.touched *
                           (bytes_of_number(table) + table.width * (table.element_bytes + gradient_element(table))) +
                       others * gradient_head(table);
    cost.held_rows += table.rows / ranks;
    cost.updated_rows += together(table, ranks) / ranks;
  }
  return cost;
}

}  // namespace convoy
