// WeightSource: the tensors of a model in Python files or in a checkpoint, read piece by piece from mapped files.
//
// Threads: one at a time. Failure: Error(corrupt_data) names the damaged file; Error(config) for a path in no supported
// format. Reading never runs code: pickled files are refused.
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

// One tensor of a source.
struct SourceTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string file;  // file with the tensor, or the checkpoint; for messages
  at::ScalarType dtype = at::kFloat;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const std::string& path() const = 0;
  virtual const std::vector<SourceTensor>& tensors() const = 0;
  // True for a checkpoint: it has canonical names and convoy's layouts.
  virtual bool canonical() const = 0;
  // Returns config.json next to the files; null if there is none.
  virtual Json config() const { return nullptr; }
  // Writes the elements of `piece` of the whole tensor into `out`, in its dtype and on its device. The whole consists
  // of the tensors `stored` of this source, in the layout of `name`. Needs memory for the largest of them at most.
  virtual void read(const WeightName& name, const std::vector<std::string>& stored, const Piece& piece,
                    const at::Tensor& out) = 0;
};

// `path`: a safetensors file, a folder with such files (several need the index of transformers), a run, or a
// checkpoint. "@memberN" selects a member of an ensemble. `verify`: also checks the hashes of a checkpoint, which reads
// all of it.
std::unique_ptr<WeightSource> open_weights(const std::string& path, bool verify);

// `view`: rows [first, first + view.size(0)) of the whole tensor, any strides. Copies their elements that belong to
// `piece` into `out` (contiguous). Returns their number.
int64_t copy_rows(const Piece& piece, const at::Tensor& out, const at::Tensor& view, int64_t first);

}  // namespace convoy
