// The safetensors format: an 8-byte length, a JSON header, raw tensors. Reading never runs code.
// The reader checks lengths, offsets, overlaps, gaps and overflow and throws Error(corrupt_data) naming the file.
// Threads: const after construction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/files/files.h"

namespace convoy {

struct WrittenFile {
  int64_t bytes = 0;
  std::string hash;  // XXH3-128 of the whole file, hex
};

// Writes entries in the given order. Each is made contiguous and moved to the CPU, one at a time; then the file is
// fsynced. After Error(io) with the cause, the partial file is removed. `path` must not exist. dtypes: fp16, bf16,
// fp32, fp64, int8 to int64, uint8, bool.
WrittenFile write_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& entries,
                              const std::map<std::string, std::string>& metadata, FileSystem& files = system_files());

// A tensor that is computed when it is written, so that only one at a time needs memory.
struct TensorToWrite {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> values;  // returns a tensor of that dtype and shape
};
WrittenFile stream_safetensors(const std::string& path, const std::vector<TensorToWrite>& entries,
                               const std::map<std::string, std::string>& metadata, FileSystem& files = system_files());

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  // memory-maps the file and checks its whole header
  std::vector<std::string> names() const;             // in the order of their data
  bool has(const std::string& name) const;
  // Returns a read-only view that keeps the mapping alive; writing to it ends the process. Returns a copy if the tensor
  // is not aligned in the file. CONVOY_CHECK that the name exists.
  at::Tensor tensor(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  // Frees the memory of mapped pages. Views stay valid and read the file again. All pages: a read maps neighbours too.
  void release() const;
  const std::map<std::string, std::string>& metadata() const;
  int64_t bytes() const;
  std::string hash() const;  // hashes the whole file without keeping it in memory
  // True if the file belongs to this user or root, and no other user may write it.
  bool only_ours() const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace convoy
