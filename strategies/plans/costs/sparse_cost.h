// Cost of sparse embeddings, and checks that need the model's tables. Without LibTorch.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "strategies/plans/catalogue.h"

namespace convoy {

// True if checks need the model's tables: sharded rows (tied layers), or weight decay that sparse embeddings refuse.
bool sparse_check_wants_blocks(const JobPlan& job);
void check_sparse_blocks(const JobPlan& job, const ModelDescription& description);
// Sparse embedding of a model, and the rows that a step of one rank touches.
struct TouchedTable {
  std::string name;
  double rows = 0, width = 0, element = 0;
  double ids = 0;  // ids that a rank's share of a batch looks up
  // See TableSize::drawn; empty: ids are distributed evenly.
  std::vector<std::pair<double, double>> drawn{};
  double bytes() const { return rows * width * element; }
  // Returns how many different rows `ranks` ranks touch in `batches` batches.
  double unique(double batches, double ranks) const;
};
// Returns the sparse embeddings of a strategy that supports them, with `ranks` ranks on its data axis.
std::vector<TouchedTable> touched_tables(const RunConfig& config, const ModelDescription& description, int ranks);
// Returns the model without these embeddings.
ModelDescription without(const ModelDescription& description, const std::vector<TouchedTable>& tables);

// Ranks along the axis `data`, for the cost of sparse embeddings.
struct RowRanks {
  int ranks = 1;
  bool gpus = false;
  int sharing = 1;  // ranks of a host that share one copy of each table and divide its updates (sparse/shared_rows.h)
};
RowRanks row_ranks(const JobPlan& job);
// Adds the moments, touched rows and exchanges of `tables` to the cost of `without(…)`. `dense`: bytes of gradients
// that are sent together with the rows.
void add_row_cost(const RunConfig& config, const std::vector<TouchedTable>& tables, const RowRanks& where, double dense,
                  RankCost& cost);
// Returns one line per table that is sparse, or stays dense although it was requested as sparse, with the reason.
std::string sparse_text(const JobPlan& job, const ModelDescription& description);

// Table, and the number of different rows that a rank touches in an update.
struct ShardedTable {
  double rows = 0;  // rows of the table
  double width = 0;
  double element_bytes = 4;
  double touched = 0;
  double sent_bytes = 0;  // bytes of one element of a gradient in a message; 0: element_bytes
};
// Cost for one of `ranks` ranks of an update of these tables.
// gathered: every rank has whole tables and gathers all touched rows (row_gather.h; with `gpus`, DeviceRowGather).
// sharded: each row has one owner (sparse/sharded_rows.h). `dense_bytes`: other gradients that are sent with them.
struct RowCost {
  double bytes_sent = 0;  // per update
  double messages = 0;    // exchanges, one after another
};
RowCost gathered_rows_cost(const std::vector<ShardedTable>& tables, int ranks, double dense_bytes, bool gpus = false);
RowCost sharded_rows_cost(const std::vector<ShardedTable>& tables, int ranks, double dense_bytes);

}  // namespace convoy
