// Row tables dealt out to ranks (row_shares.h), without LibTorch: who asks for them, and what they cost.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"

namespace convoy {

// Whether a model says `rows: sharded`.
bool asks_for_shares(const Options& model);

// One table, and how many different rows of it a rank touches in an update.
struct DealtTable {
  double rows = 0;  // of the table
  double width = 0;
  double element_bytes = 4;
  double touched = 0;
  double sent_bytes = 0;  // of a gradient's number in a message; 0: as it is
};
// What one rank of `ranks` has to do with an update of these tables, where each holds them whole and gathers what all touched
// (row_gather.h; on accelerators, `gpus`, device_row_gather.h), or each row has one owner (row_shares.h). `dense_bytes`: of other
// gradients, where they travel along.
struct RowCost {
  double bytes_sent = 0;  // per update
  double messages = 0;    // exchanges that wait for each other
  double held_rows = 0;   // of all tables
  double updated_rows = 0;
};
RowCost gathered_rows_cost(const std::vector<DealtTable>& tables, int ranks, double dense_bytes, bool gpus = false);
RowCost shared_rows_cost(const std::vector<DealtTable>& tables, int ranks, double dense_bytes);

}  // namespace convoy
