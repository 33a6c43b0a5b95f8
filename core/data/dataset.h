// Dataset: gathers whole batches by row numbers; there is no call per row.
//
// It has rows, their schema, and a separate set of rows for evaluation. Negatives and other drawn values of a row are
// functions of (seed, epoch, index). So a batch is equal in every layout and after a resume.
// Threads: const after construction; loader threads and ranks call `gather`, so it must be thread-safe.
// Failure: the constructor throws Error(corrupt_data) with file, line and column, or Error(io).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/batch.h"
#include "core/data/contents.h"
#include "core/data/rows.h"

namespace convoy {

// A field's properties that determine the sizes of a model's layers.
struct Field {
  std::vector<int64_t> shape;  // shape of one row, without the row dimension
  at::ScalarType dtype = at::kFloat;
  int64_t cardinality = 0;  // number of distinct ids or classes; 0: continuous
};
struct Schema {
  std::map<std::string, Field> fields;  // by tensor name in the batch: "features", "target", "user", "item", …
  // Error(config) names the existing fields and `asked_by`.
  const Field& at(const std::string& name, const std::string& asked_by) const {
    const auto found = fields.find(name);
    if (found != fields.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& field : fields) names.push_back(field.first);
    throw Error(Failure::config, asked_by, " needs a field '", name, "' in each row, and this data set has ",
                join(names, ", "), ": choose another model or another data set (convoy list)");
  }
};

enum class Split { train, evaluate };

class Dataset;
struct Interactions;
struct PreparedInteractions;
using DatasetPtr = std::shared_ptr<const Dataset>;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual Schema schema() const = 0;
  virtual int64_t size(Split split) const = 0;  // rows; evaluate may be 0
  // Training instances for which one row counts (NCF: 1 + negatives); for `samples` in the summary.
  virtual int64_t instances_per_row() const = 0;
  // Tokens of a row of text, for `tokens` in the summary; 0 if rows are not text.
  virtual int64_t tokens_per_row() const { return 0; }
  // True if gather only copies from memory. False if it reads from a disk or decodes.
  virtual bool gathers_from_memory() const { return false; }
  // Returns tensors for rows `indices` (int64, CPU, contiguous, any order), rows first, in memory from `buffers`.
  // `epoch` keys draws that change with each epoch. Sets `rows`; the caller sets the batch's other counts.
  virtual Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const = 0;
  // Gathers into new memory, for tests and single batches.
  Batch gather_once(Split split, const at::Tensor& indices, int64_t epoch) const {
    BatchBuffers buffers;
    return gather(split, indices, epoch, buffers);
  }
  // Stored in checkpoints and compared on resume. Not stored if the fingerprint is empty.
  virtual DataContents contents() const { return {}; }
  // Returns the same rows with the numbers that `stored` gives to ids, classes and columns; `stored` contains all of
  // them. Null: this data set does not support other numbers.
  virtual DatasetPtr numbered_as(const DataContents& /*stored*/) const { return nullptr; }
  // All interactions of users with items, for `convoy recommend` (core/data/sets/interactions.h). Valid as long as the
  // data set. Null: rows are something else.
  virtual const Interactions* interactions() const { return nullptr; }
  // Preparation of the contexts and features of these interactions; batches have the prepared values. Null if
  // interactions() is null.
  virtual const PreparedInteractions* prepared_interactions() const { return nullptr; }
};

// Augmentation of a gathered batch, in the loader's thread. Draws are functions of (seed, epoch, row number).
class Transform {
 public:
  virtual ~Transform() = default;
  virtual void apply(Batch& batch, const at::Tensor& indices, uint64_t seed, int64_t epoch) const = 0;
  virtual bool evaluation_too() const = 0;  // normalise: yes; flip: no
};

}  // namespace convoy
