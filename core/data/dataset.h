// Dataset: gathers whole batches by indices; no per-row call exists.
//
// Role: rows, their schema, and for evaluation a second, separate set of rows. Negatives and other drawn parts of a row
// are functions of (seed, epoch, index), so that a batch is the same in every layout and after a resume.
// Threads: const after construction; `gather` is called from loaders' threads, or ranks' own, and must be thread-safe.
// Failure: the constructor throws Error(corrupt_data) with file, line and column, or Error(io).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/data/buffers.h"
#include "core/data/contents.h"

namespace convoy {

// What a model must know of the data to size its layers.
struct Field {
  std::vector<int64_t> shape;  // of one row, without the row dimension
  at::ScalarType dtype = at::kFloat;
  int64_t cardinality = 0;  // number of distinct ids or classes; 0: continuous
};
struct Schema {
  std::map<std::string, Field> fields;  // by tensor name in the batch: "features", "target", "user", "item", …
  const Field& at(const std::string& name, const std::string& asked_by) const;  // Error(config) naming what there is
};

enum class Split { train, evaluate };

class Dataset;
using DatasetPtr = std::shared_ptr<const Dataset>;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual Schema schema() const = 0;
  virtual int64_t size(Split split) const = 0;  // rows; evaluate may be 0
  // Training instances that one row counts for (NCF: 1 + negatives); for `samples` in the summary.
  virtual int64_t instances_per_row() const = 0;
  // Tokens of a row of text, for `tokens` in the summary; 0 where rows are not text.
  virtual int64_t tokens_per_row() const { return 0; }
  // Whether gather only copies from memory: it waits for no disk, and decodes nothing.
  virtual bool at_hand() const { return false; }
  // Tensors for rows `indices` (int64, CPU, contiguous, any order), rows first, written into memory from `buffers`.
  // `epoch` keys what is drawn anew each epoch. Sets `rows`; the other counts of the batch are the caller's.
  virtual Batch gather(Split split, const at::Tensor& indices, int64_t epoch, Buffers& buffers) const = 0;
  // The same into memory of its own: for tests and for whoever gathers once.
  Batch gather_once(Split split, const at::Tensor& indices, int64_t epoch) const;
  // Kept in checkpoints, and compared when a run goes on from one. Without a fingerprint nothing is kept.
  virtual DataContents contents() const { return {}; }
  // The same rows with the numbers that `stored` gives to ids, classes and columns, all of which it knows. Null: this data
  // set cannot take numbers that are not its own.
  virtual DatasetPtr numbered_as(const DataContents& /*stored*/) const { return nullptr; }
};

// Augmentation, applied to a gathered batch where it was gathered. Draws are functions of (seed, epoch, sample index).
class Transform {
 public:
  virtual ~Transform() = default;
  virtual void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const = 0;
  virtual bool evaluation_too() const = 0;  // normalise: yes; flip: no
};

}  // namespace convoy
