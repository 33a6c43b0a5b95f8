// Row tables without LibTorch: when an embedding becomes one by itself, and what of a configuration stands in their way.
#pragma once
#include "strategies/catalogue.h"

namespace convoy {

// `rows: auto`: tables of at least 65,536 rows and 50 times those of a batch. Below, a sweep over the whole table costs
// less than what rows cost beside their bytes.
bool rows_by_size(int64_t table_rows, int64_t batch_rows);

// Whether a model that says `rows: true` has row tables by this configuration; `supported`: its strategy can have them. Throws
// ConfigError at the key that stands in their way.
void check_row_tables(const RunConfig& config, bool supported);

}  // namespace convoy
