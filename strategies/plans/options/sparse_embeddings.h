// Sparse embeddings without LibTorch: which embeddings become sparse, which options prevent it, and sizes of messages.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/config/run_config.h"

namespace convoy {

// Embedding that is sparse, or becomes sparse if it is large enough.
struct TableSize {
  std::string name;  // canonical name of its weight
  int64_t rows = 0, dim = 0;
  bool asked = false;   // the model requests a sparse embedding of any size
  int64_t lookups = 1;  // most ids in one row of a batch, as declared by the model
  double row_ids = 0;   // ids per row of a batch; 0: not measured
  // Pairs (ids, different rows among them) of growing samples of the data; empty: not measured.
  std::vector<std::pair<double, double>> drawn{};
};
CONVOY_JSON(TableSize, name, rows, dim, asked, lookups, row_ids, drawn)

// Decision for one embedding, with `ranks` ranks on the data axis. Ranks and planner use the same function.
struct SparseDecision {
  bool rows = false;
  bool large = false;  // `rows: auto` takes rows for this many rows and look-ups
  std::string key;     // key whose value keeps the table dense; "": none
  std::string reason;  // why it is dense
};
SparseDecision sparse_decision(const RunConfig& config, int ranks, const TableSize& table);

// --- Sizes of rows in messages ---

// Returns the bytes of a row number, in a table of `rows` rows.
inline int64_t number_bytes(int64_t rows) { return rows <= std::numeric_limits<int32_t>::max() ? 4 : 8; }

// Pads the length of a section of a message, because sections begin at multiples of 8.
inline int64_t padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

// Bytes before half-precision numbers: the exponent of their scale (strategies/replicas/bucket_reducer.h), as an int64.
constexpr int64_t half_head_bytes = 8;
// Returns the bytes of half-precision numbers; 0 for none.
inline int64_t half_bytes(int64_t numbers) { return numbers == 0 ? 0 : half_head_bytes + padded(2 * numbers); }

// Largest size of dense gradients that are sent together with rows.
constexpr double most_dense_with_rows = 256 << 10;

// Value of the option `rows` of a model: its embeddings are dense; sparse where that pays; sparse; or sparse, with each
// row on one rank. A model without the option: automatic.
enum class RowsOption { dense, automatic, sparse, sharded };
RowsOption rows_option(const Options& model);
inline bool wants_sharded_rows(const Options& model) { return rows_option(model) == RowsOption::sharded; }

}  // namespace convoy
