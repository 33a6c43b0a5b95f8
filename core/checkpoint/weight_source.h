// WeightSource: the tensors of a model in files of Python or in a checkpoint, read piece by piece from mapped files.
//
// Threads: one at a time. Failure: Error(corrupt_data) naming the damaged file; Error(config) for a path that is none
// of the formats. Reading never runs code: pickled files are refused.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/options.h"
#include "core/checkpoint/weight_names.h"
#include "core/state.h"

namespace convoy {

// A tensor of a source.
struct SourceTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string file;  // that has it, or the checkpoint; for messages
  at::ScalarType dtype = at::kFloat;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const std::string& path() const = 0;
  virtual const std::vector<SourceTensor>& tensors() const = 0;
  // True for a checkpoint: names are canonical, and layouts those of convoy.
  virtual bool canonical() const = 0;
  // config.json next to the files; null if there is none.
  virtual Json config() const { return nullptr; }
  // Writes the elements that `piece` has of the whole tensor into `out`, in its dtype and on its device. The tensors
  // `stored` of this source, in the layout of `name`, are the whole. Needs memory for the largest of them at most.
  virtual void read(const WeightName& name, const std::vector<std::string>& stored, const Piece& piece,
                    const at::Tensor& out) = 0;
};

// `path`: a file in safetensors, a folder with such files (of transformers: with an index if there are several), a run,
// or a checkpoint; "@memberN" selects a member of an ensemble. `verify`: also checks the hashes of a checkpoint, which
// reads all of it.
std::unique_ptr<WeightSource> open_weights(const std::string& path, bool verify);

// Copies what `piece` has of rows [first, first + view.size(0)) of the whole tensor, from a view with any strides.
// Returns the number of elements. `out` is contiguous.
int64_t copy_rows(const Piece& piece, const at::Tensor& out, const at::Tensor& view, int64_t first);

}  // namespace convoy
