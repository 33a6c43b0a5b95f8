// Parts of DataDraft that tables of text and of arrays share.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/data/formats/input_files.h"
#include "launch/init/init.h"

namespace convoy {

// Mean and deviation of numbers, by Welford's method: a large mean does not cost digits.
class Moments {
 public:
  void add(double number) {
    const double before = number - mean_;
    mean_ += before / double(++count_);
    squares_ += before * (number - mean_);
  }
  double mean() const { return mean_; }
  double deviation() const;  // standard deviation of the population

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

// Error(config) for too few rows.
void check_rows(const std::string& path, int64_t rows);
// Sets the batch size, and a length of about 2000 steps but 2 to 50 epochs.
void set_length(DataDraft& draft, int64_t rows, int64_t most_batch);
// Model and optimizer. `target`: of the numbers to predict, in the file `path`; null: the target has classes. Throws
// Error(corrupt_data) if the numbers are too large for fp32.
void set_mlp(DataDraft& draft, const std::string& path, const Moments* target);

// `target`: a file of targets for .npy, a tensor for .safetensors. Throws as inspect_data.
DataDraft arrays_draft(const MappedFile& file, const std::string& target);
// Names of the tensors of a .safetensors file, in the order of their data.
std::vector<std::string> tensor_names(const MappedFile& file);

}  // namespace convoy
