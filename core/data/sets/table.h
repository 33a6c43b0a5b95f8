// Tables from the user: features and a target from CSV with declared columns, or arrays (.npy, safetensors),
// memory-mapped.
// Batch tensors: features [B, …] float · target [B] int64 (classification), [B] or [B, k] float (regression) · weight
// [B].
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/base/options.h"
#include "core/data/dataset.h"
#include "core/data/formats/mapped_file.h"
#include "core/data/sampler.h"

namespace convoy {

struct TableOptions {
  std::string target_path;  // .npy file with targets
  char delimiter = ',';
  bool header = true;
  std::vector<std::string> features;  // CSV: columns, empty: all others; safetensors: the tensor's name
  std::string target = "target";
  std::string weight;  // "": none
  bool classification = true;

  static TableOptions from(const Options& options);
};

struct TableData {
  at::Tensor features;               // [N, …], any dtype of numbers
  at::Tensor target;                 // [N] int64 indices into `labels`, or the numbers themselves
  at::Tensor weight;                 // [N]; undefined: all one
  std::vector<std::string> labels;   // CSV classification: sorted class names by number
  std::vector<std::string> columns;  // CSV: names of the features, in order
  std::string fingerprint;           // CSV: hash of the file
  std::vector<MappedFile> sources;   // arrays: the files; hashed when the fingerprint is needed

  int64_t rows() const { return features.size(0); }
};

// Chooses the format by the extension of `path`. Throws Error(corrupt_data) with file:line:column, Error(io),
// Error(config).
TableData read_table(const std::string& path, const TableOptions& options);
TableData read_table_csv(const std::string& path, const TableOptions& options);

class Table : public Dataset {
 public:
  // Evaluation rows: a separate file, or a seeded fraction of the rows. `classes`: number of classes if the data shows
  // fewer; 0: as many as the data shows.
  Table(TableData train, std::optional<TableData> evaluate, double fraction, bool classification, int64_t classes,
        uint64_t seed);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  bool gathers_from_memory() const override { return true; }
  DataContents contents() const override;  // without the rows of a separate evaluation file
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

 private:
  const TableData train_;
  const std::optional<TableData> evaluate_;
  const double fraction_;
  const bool classification_;
  const uint64_t seed_;
  int64_t classes_ = 0;
  int64_t split_off_ = 0;  // rows at the start of `order_`, for evaluation
  Permutation order_;
};

DatasetPtr make_table(const Options& options, uint64_t seed);

// Reads NumPy's .npy files, memory-mapped. Returns a read-only view that keeps the mapping alive. Supports
// little-endian numbers in C order; otherwise Error(corrupt_data) with the Python call that converts the file. Never
// runs code: arrays of objects are refused.
at::Tensor read_npy(const std::string& path);

}  // namespace convoy
