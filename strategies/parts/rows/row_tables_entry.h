// Row tables without LibTorch: when an embedding becomes one by itself, and what of a configuration stands in their way.
#pragma once
#include <string>
#include <vector>

#include "strategies/catalogue.h"
#include "strategies/parts/replicas/sync_entry.h"

namespace convoy {

// `rows: auto`: tables of at least 65,536 rows of which an update looks up a quarter at most, of its ids some alike: so about a
// fifth of the rows. Below, a sweep over the whole table costs less than what single rows cost beside their bytes; and all
// ranks' rows, which each of them gathers, may be more bytes than the table's.
bool rows_by_size(int64_t table_rows, double lookups);

// What becomes of an embedding that is to be a row table, or may be one, with so many ranks on the data axis: ranks and plans
// ask the same.
struct RowDecision {
  bool rows = false;
  bool large = false;  // rows_by_size
  std::string key;     // of the file, whose value keeps it dense; "": none does
  std::string reason;  // why it is dense
};
RowDecision row_decision(const RunConfig& config, int ranks, const TableSize& table);

// Whether a model that says `rows: true` has row tables by this configuration, as far as that tells; `supported`: its strategy
// can have them. Throws ConfigError at the key that stands in their way.
void check_row_tables(const RunConfig& config, bool supported);
// The rest of it, which takes the tables' names: groups of the optimizer, layers that are tied.
bool rows_want_blocks(const Job& job);
void check_row_blocks(const Job& job, const Description& description);
// What a plan says of tables that stay dense although rows were asked for; empty where none do.
std::vector<std::string> row_warnings(const RunConfig& config);

// A row table of a model, and what a step of a rank touches of it.
struct TouchedTable {
  std::string name;
  double rows = 0, width = 0, element = 0;
  double ids = 0;  // looked up by a rank's share of a batch
  // As TableSize::drawn; empty: ids are spread evenly.
  std::vector<std::pair<double, double>> drawn{};
  double bytes() const { return rows * width * element; }
  // Different rows that so many ranks touch in so many batches.
  double unique(double batches, double ranks) const;
};
// Those that a strategy keeps which has row tables, whose data axis has so many ranks.
std::vector<TouchedTable> touched_tables(const Json& config, const Description& description, int ranks);
// The model without these tables.
Description without(const Description& description, const std::vector<TouchedTable>& tables);

// Dense gradients of up to so many bytes travel with the rows.
constexpr double most_dense_with_rows = 256 << 10;
// What tables hold and send beside what without(…) does: moments, what an update touches, exchanges along the axis `data`.
// `dense` bytes of gradients travel with the rows.
struct RowRanks {
  int ranks = 1;
  bool gpus = false;  // on accelerators
  int sharing = 1;    // of a host, which keep one copy of each table and divide its updates (host_rows.h)
};
RowRanks row_ranks(const Job& job);
void add_row_cost(const Json& config, const std::vector<TouchedTable>& tables, const RowRanks& where, double dense,
                  RankCost& cost);
// A line for each table that is one of rows, or is not although it was to be, with the reason.
std::string row_text(const Job& job, const Description& description);

}  // namespace convoy
