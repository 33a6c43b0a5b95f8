// Sparse embeddings without LibTorch: which embeddings become sparse, which options prevent it, and their costs.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "strategies/plans/catalogue.h"
#include "strategies/plans/options/sync.h"

namespace convoy {

// Decides for `rows: auto`: true for a table of at least 65,536 rows if an update looks up at most a quarter of them.
// Some ids repeat, so that is about a fifth of the rows. A smaller table is cheaper to update as a whole: single rows
// have fixed costs, and the rows of all ranks, which every rank gathers, may exceed the table.
bool rows_by_size(int64_t table_rows, double lookups);

// Decision for one embedding, with `ranks` ranks on the data axis. Ranks and planner use the same function.
struct SparseDecision {
  bool rows = false;
  bool large = false;  // rows_by_size
  std::string key;     // key whose value keeps the table dense; "": none
  std::string reason;  // why it is dense
};
SparseDecision sparse_decision(const RunConfig& config, int ranks, const TableSize& table);

// Checks a model with `rows: true` against this configuration. `supported`: the strategy supports sparse embeddings.
// Throws ConfigError at the key that prevents them.
void check_sparse_embeddings(const RunConfig& config, bool supported);
// True if checks need the names of tables: parameter groups of the optimizer, tied layers.
bool sparse_check_wants_blocks(const JobPlan& job);
void check_sparse_blocks(const JobPlan& job, const ModelDescription& description);
// Returns warnings about tables that stay dense although the model requests sparse ones.
std::vector<std::string> sparse_warnings(const RunConfig& config);

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
std::vector<TouchedTable> touched_tables(const Json& config, const ModelDescription& description, int ranks);
// Returns the model without these embeddings.
ModelDescription without(const ModelDescription& description, const std::vector<TouchedTable>& tables);

// --- Sizes of rows in messages ---

// Returns the bytes of a row number, in a table of `rows` rows.
inline int64_t number_bytes(int64_t rows) { return rows <= std::numeric_limits<int32_t>::max() ? 4 : 8; }

// Pads the length of a section of a message, because sections begin at multiples of 8.
inline int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

// Bytes before half-precision numbers: the exponent of their scale (compressed_sum.h), as an int64.
constexpr int64_t half_head_bytes = 8;
// Returns the bytes of half-precision numbers; 0 for none.
inline int64_t half_bytes(int64_t numbers) { return numbers == 0 ? 0 : half_head_bytes + padded(2 * numbers); }

// Largest size of dense gradients that are sent together with rows.
constexpr double most_dense_with_rows = 256 << 10;
// Ranks for the cost of sparse embeddings, which is added to the cost of `without(…)`: moments, touched rows, exchanges
// along the axis `data`. `dense`: bytes of gradients that are sent together with the rows.
struct RowRanks {
  int ranks = 1;
  bool gpus = false;
  int sharing = 1;  // ranks of a host that share one copy of each table and divide its updates (sparse/shared_rows.h)
};
RowRanks row_ranks(const JobPlan& job);
void add_row_cost(const Json& config, const std::vector<TouchedTable>& tables, const RowRanks& where, double dense,
                  RankCost& cost);
// Returns one line per table that is sparse, or stays dense although it was requested as sparse, with the reason.
std::string sparse_text(const JobPlan& job, const ModelDescription& description);

// --- Sharded embeddings (sparse/sharded_rows.h): which models request them, and their cost ---

// True if the model has `rows: sharded`.
bool wants_sharded_rows(const Options& model);

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
