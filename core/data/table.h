// Tables of one's own: features and a target from CSV by declared columns, or arrays (.npy, safetensors), memory-mapped.
// Batch tensors: features [B, …] float · target [B] int64 (classification), [B] or [B, k] float (regression) · weight [B].
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/mapped_file.h"
#include "core/data/permutation.h"
#include "core/options.h"

namespace convoy {

struct TableOptions {
  std::string target_path;  // of a .npy with targets
  char delimiter = ',';
  bool header = true;
  std::vector<std::string> features;  // CSV: columns, empty: all others; safetensors: the tensor's name
  std::string target = "target";
  std::string weight;  // "": none
  bool classification = true;

  static TableOptions from(const Options& options);
};

struct TablePart {
  at::Tensor features;               // [N, …], any dtype of numbers
  at::Tensor target;                 // [N] int64 codes of `labels`, else the numbers themselves
  at::Tensor weight;                 // [N]; undefined: all one
  std::vector<std::string> labels;   // CSV classification: the classes' names, sorted, numbers by value
  std::vector<std::string> columns;  // CSV: of the features, in order
  std::string fingerprint;           // CSV: of the file
  std::vector<MappedFile> sources;   // arrays: the files, hashed when the fingerprint is wanted

  int64_t rows() const { return features.size(0); }
};

// By the extension of `path`. Throws Error(corrupt_data) with file:line:column, Error(io), Error(config).
TablePart read_table(const std::string& path, const TableOptions& options);
TablePart read_table_csv(const std::string& path, const TableOptions& options);

class Table : public Dataset {
 public:
  // Evaluation by a part of its own, or a seeded fraction of the rows.
  // classes: where there are more than the data shows; 0: as many as it shows.
  Table(TablePart train, std::optional<TablePart> evaluate, double fraction, bool classification, int64_t classes,
        uint64_t seed);

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  bool at_hand() const override { return true; }
  DataContents contents() const override;  // without the rows of a file of their own to evaluate on
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const override;

 private:
  const TablePart train_;
  const std::optional<TablePart> evaluate_;
  const double fraction_;
  const bool classification_;
  const uint64_t seed_;
  int64_t classes_ = 0;
  int64_t split_off_ = 0;  // rows at the start of `order_` that are for evaluation
  Permutation order_;
};

DatasetPtr make_table(const Options& options, uint64_t seed);

}  // namespace convoy
