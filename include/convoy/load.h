// load: a trained model for a program that serves it.
//
//   const convoy::LoadedModel model = convoy::load("runs/digits@best");
//   const convoy::Batch rows = model.prepare("size,colour\n3.5,red\n");  // as `convoy predict` reads rows
//   const at::Tensor scores = model.forward(rows).front();               // [rows, classes]
//
// forward() takes rows as the model took them in training: scaled, with numbers for ids and categories. prepare() makes
// such rows from the values of the training file, by the data.scale, data.categorical, data.missing and data.transforms
// that the checkpoint stores.
// The model comes whole from a checkpoint of any layout, on one device, in evaluation mode: no dropout, no gradients,
// stored batch-norm statistics. The training data is not needed. docs/using.md shows a whole program.
// Threads: one thread at a time per object. Different objects are independent; they share no memory.
// Errors: Error(command_line) for a path that is no run. Error(corrupt_data) for a damaged checkpoint, with the names
// of older ones, and for rows with unknown ids, categories or columns. Error(device_missing) for a device that is not
// there. Error(config) for a checkpoint without a description of its rows, for a plugin that moved, and for rows that
// do not fit the model.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/data/dataset.h"
#include "core/model_interface.h"

namespace convoy {

struct LoadOptions {
  c10::Device device{c10::kCPU};
  // Changes to the stored configuration, written as for `--set`, such as "model.plugin=/new/path/libmine.so".
  std::vector<std::string> settings = {};
};

class LoadedModel {
 public:
  LoadedModel(LoadedModel&&) noexcept;
  LoadedModel& operator=(LoadedModel&&) noexcept;
  ~LoadedModel();

  // Rows of text in the form of the training file, with its header and without the target. Columns may have any order;
  // words and ids are those of the file. For runs of `table` and `interactions`.
  Batch prepare(const std::string& text) const;
  // Rows by the names of fields: numbers as in the training file, [rows, columns] of features or context. A category is
  // its number, a missing value NaN. Features of users and items come from the checkpoint.
  Batch prepare_arrays(const std::vector<std::pair<std::string, at::Tensor>>& fields) const;

  // Outputs of the last block. `batch` has the fields of schema() that the model reads; `rows` must be set.
  TensorList forward(const Batch& batch) const;
  // The first output, for a model that reads one field, `features` or `tokens`: rows are dimension 0.
  at::Tensor forward(const at::Tensor& input) const;

  // Fields of a row in training: the shape, and the number of ids or classes.
  const Schema& schema() const;
  // Names by number, as in the training data: "users", "items", "classes", "columns", …; empty: none are stored.
  std::vector<std::string> names(const std::string& list) const;
  // Steps that the checkpoint has been trained, and its folder.
  int64_t step() const;
  const std::string& checkpoint() const;

  // Internal: api/loaded_model.h.
  struct Impl;
  Impl& impl() const { return *impl_; }
  explicit LoadedModel(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// `run`: a run folder or a checkpoint, also RUN@best, RUN@step-N and RUN@memberN. For an ensemble name a member.
LoadedModel load(const std::string& run, const LoadOptions& options = {});
// All members of an ensemble in order; one model for any other run.
std::vector<LoadedModel> load_members(const std::string& run, const LoadOptions& options = {});

}  // namespace convoy
