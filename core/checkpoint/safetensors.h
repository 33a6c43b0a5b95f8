// The safetensors format: an 8-byte length, a JSON header, raw tensors. No code is ever run from such a file.
// The reader checks lengths, offsets, overlaps, gaps and overflow and throws Error(corrupt_data) naming the file.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace convoy {

// Entries in the given order, CPU tensors, made contiguous; fsyncs; Error(io) with the cause, the partial file removed.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& entries,
                       const std::map<std::string, std::string>& metadata);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);   // memory-maps; header checked whole
  ~SafetensorsFile();
  std::vector<std::string> names() const;
  at::Tensor tensor(const std::string& name) const;    // a read-only view of the mapping that keeps it alive
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace convoy
