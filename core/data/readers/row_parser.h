// RowParser: turns one row of text into one row of a batch, for rows without a target (new_rows.h).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/data/formats/delimited.h"
#include "core/data/readers/new_rows.h"

namespace convoy {

// A category or an id that training did not have.
struct UnknownValue {
  size_t column;
  std::string reason;
};

// Fills row `r` of the tensors of a block. Threads: several may call const methods.
class RowParser {
 public:
  virtual ~RowParser() = default;
  virtual Batch make_batch(int64_t rows) const = 0;  // allocates all fields; `parse` fills them
  virtual int64_t scratch() const = 0;               // floats of memory that each call of `parse` needs
  // Parses the reader's current line. Returns the value that training did not have, if the line has one.
  virtual std::optional<UnknownValue> parse(const DelimitedReader& reader, int64_t r, Batch& batch,
                                            float* scratch) const = 0;
  virtual void finish(Batch& /*batch*/) const {}  // after all rows are parsed
};

// Creates the parser of rows of features. `columns`: their column numbers in the file, in the order of the checkpoint's
// list "columns".
std::unique_ptr<RowParser> table_row_parser(const TrainedData& trained, std::vector<size_t> columns);

// Column numbers in the file.
struct PairColumns {
  size_t user = 0, item = 0;
  std::vector<size_t> context;  // in the order of the checkpoint's list "context_columns"
};
std::unique_ptr<RowParser> interaction_row_parser(const TrainedData& trained, const PairColumns& columns);

// Returns the features of all users or items of the checkpoint, prepared: [number of ids, F]; undefined if there are
// none. `entity`: "user" or "item".
at::Tensor stored_features(const TrainedData& trained, const std::string& entity);

}  // namespace convoy
