// The result of `convoy predict`: CSV (or other text) with the columns of the input, .npy, or .safetensors.
//
// Rows are written block by block. Threads: one; text is made by the intra-op threads.
// Errors: those of OutputFile.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/data/readers/new_rows.h"
#include "core/files/output_file.h"

namespace convoy {

// How the outputs of a model are written.
struct PredictionForm {
  std::vector<std::string> classes;  // names; empty: the model predicts numbers
  int64_t width = 1;                 // numbers a row
  int64_t members = 1;               // models of an ensemble; 1: a single model
  enum class Probabilities { all, best, none } probabilities = Probabilities::all;
};

// Predictions of one block of rows.
struct Predictions {
  at::Tensor values;   // float [n, width]: probabilities of the classes, or numbers; of an ensemble their means
  at::Tensor best;     // int64 [n]: class; undefined for numbers
  at::Tensor members;  // several members: int64 [members, n] classes, or float [members, n, width] numbers
};

class PredictionFile {
 public:
  virtual ~PredictionFile() = default;
  virtual void write(const Predictions& predictions, const RowBlock& block) = 0;
  virtual void finish() = 0;
};

// Names of the columns that are added to `existing`: a taken name gets _2, _3, ….
std::vector<std::string> prediction_columns(const PredictionForm& form, const std::vector<std::string>& existing);

// The ending of the file's path chooses the format. `rows`: the rows of the input; an array has one entry for each.
std::unique_ptr<PredictionFile> make_prediction_file(std::unique_ptr<OutputFile> file, const PredictionForm& form,
                                                     const NewRows& rows);

}  // namespace convoy
