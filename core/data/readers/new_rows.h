// NewRows: rows without a target, in blocks, as a trained model takes them. `convoy predict` uses it.
//
// Columns are found by the names of the checkpoint, ids and words get its numbers, and its preparation is applied; so
// the training data is not needed.
// Memory: one block. The text of a file is mapped, and the system may drop what has been read.
// Threads: one; a block is parsed by the intra-op threads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/config/run_config.h"
#include "core/data/contents.h"
#include "core/data/dataset.h"
#include "core/data/preparation.h"

namespace convoy {

struct NewRowsOptions {
  bool skip_unknown = false;  // leaves out rows with an id or a category that is unknown; else such a row is an error
  int64_t block = 1 << 15;    // most rows of a block
};

struct RowBlock {
  Batch batch;                          // the fields of training; the target is zero
  std::vector<std::string_view> lines;  // text: of each row, without the end of the line; else empty
  std::vector<int64_t> numbers;         // arrays with left-out rows: the number of each row; else empty
  int64_t read = 0;                     // rows read, with those that are left out
};

class NewRows {
 public:
  virtual ~NewRows() = default;
  // False at the end. Throws Error(corrupt_data) with file:line:column.
  virtual bool next(RowBlock& block) = 0;
  virtual int64_t rows() const = 0;  // in the file
  int64_t skipped() const { return skipped_; }
  // Text only: the first line, and the names in it; empty without a header.
  const std::string& header() const { return header_; }
  const std::vector<std::string>& names() const { return names_; }
  char delimiter() const { return delimiter_; }  // '\0': rows of arrays
  bool typed_header() const { return typed_; }   // "name:type"
  bool numbered() const { return numbered_; }    // blocks have RowBlock::numbers
  // Columns or tensors that the model does not read, and a line about a changed order.
  const std::vector<std::string>& notes() const { return notes_; }

 protected:
  int64_t skipped_ = 0;
  std::string header_;
  std::vector<std::string> names_, notes_;
  char delimiter_ = '\0';
  bool typed_ = false, numbered_ = false;
};

// Data set, schema and lists that a checkpoint holds.
struct TrainedData {
  const Component& data;         // data set and options of the configuration
  const Schema& schema;          // fields of the rows in training
  const DataContents* contents;  // null: none are stored

  NameList list(const std::string& name) const;  // empty if it is not stored
  // The stored preparation of a field; without one, of the columns `names`, which it leaves unchanged.
  Preparation preparation(const std::string& field, const std::vector<std::string>& names) const;
  at::Tensor zero_target(int64_t rows, std::vector<int64_t> shape) const;
};

// Reads text with columns (data sets `table` and `interactions`), .npy (the field features), or .safetensors (tensors
// with the names of fields). Error(corrupt_data) naming missing columns; Error(config) for another kind of data.
std::unique_ptr<NewRows> open_new_rows(const std::string& path, const TrainedData& trained,
                                       const NewRowsOptions& options);

// --- Rows in memory, for a program that serves a model ---

// Text in the form of the training file. Messages contain `name` in place of a path.
std::unique_ptr<NewRows> new_text_rows(std::string text, const std::string& name, const TrainedData& trained,
                                       const NewRowsOptions& options);
// Arrays by the names of fields, as in a .safetensors file.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
std::unique_ptr<NewRows> new_array_rows(NamedTensors tensors, const std::string& name, const TrainedData& trained,
                                        const NewRowsOptions& options);

}  // namespace convoy
