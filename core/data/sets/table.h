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
#include "core/data/readers/table_reader.h"
#include "core/data/sampler.h"

namespace convoy {

class Table : public Dataset {
 public:
  // Evaluation rows: a separate part, or a seeded fraction of the rows.
  // classes: the number of classes if the data shows fewer; 0: as many as the data shows.
  // preparation: that of a checkpoint; none: computed from the training rows by `options`, which logs a hint if columns
  // should be scaled.
  Table(TableData train, std::optional<TableData> evaluate, double fraction, bool classification, int64_t classes,
        uint64_t seed, const PreparationOptions& options = {}, std::optional<Preparation> preparation = {});

  Schema schema() const override;
  int64_t size(Split split) const override;
  int64_t instances_per_row() const override { return 1; }
  bool gathers_from_memory() const override { return true; }
  DataContents contents() const override;  // without the rows of a separate evaluation file
  DatasetPtr numbered_as(const DataContents& stored) const override;
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override;

 private:
  Preparation computed_preparation() const;
  at::Tensor prepared(const at::Tensor& features, const std::vector<int64_t>& chosen, BatchBuffers& buffers) const;

  const TableData train_;
  const std::optional<TableData> evaluate_;
  const double fraction_;
  const bool classification_;
  const uint64_t seed_;
  const PreparationOptions options_;
  int64_t classes_ = 0;
  int64_t split_off_ = 0;  // rows at the start of `order_`, for evaluation
  Permutation order_;
  Preparation preparation_;
};

DatasetPtr make_table(const Options& options, uint64_t seed);

}  // namespace convoy
