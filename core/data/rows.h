// Copies and converts selected rows of an array; provides memory for batches.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

class Dataset;

// --- Features as bytes ---
// In "features" of type uint8, 255 means 1. They are converted on the model's device, so that the loader and the bus
// move a quarter of the bytes.

// Converts uint8 of any shape to `dtype` through float: bit-identical to a data set of floats.
at::Tensor from_bytes(const at::Tensor& bytes, at::ScalarType dtype);

// --- Log lines for the memory of a data set, after it is read ---
// Read-only mapped files are in memory once for all processes of the host, also across runs; other data is in memory
// once per process.

void log_mapped(const std::string& what, const std::string& file, int64_t bytes);
void log_in_memory(const std::string& what, int64_t bytes, const std::string& reason);

// BatchBuffers: memory into which a data set writes a batch. It reuses the memory of earlier batches without
// references. So a loader in its steady state allocates nothing.
//
// Threads: one BatchBuffers per loader, used by the thread that gathers; any thread may drop the tensors.
class BatchBuffers {
 public:
  // pinned: page-locked memory, for non-blocking copies to a GPU. LibTorch's cache then reuses it, because only
  // LibTorch knows when a copy has ended.
  explicit BatchBuffers(bool pinned = false) : pinned_(pinned) {}

  // Returns a contiguous, uninitialised CPU tensor.
  at::Tensor take(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype);

 private:
  bool pinned_;
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> reusable_;  // few names, few tensors each
};

// out[r] = scale · source[rows_wanted[r]], elementwise over all dimensions but the first. CPU, contiguous. `source`:
// any integer or float dtype; `out`: float, double, int64 or uint8.
void gather_rows(const at::Tensor& source, const int64_t* rows_wanted, int64_t rows, at::Tensor& out, double scale = 1);

// True if training rows can be evaluated too. False if evaluation rows have a different form, such as a user with
// candidates. Gathers a row of each split.
bool can_evaluate_training_rows(const Dataset& data);

}  // namespace convoy
