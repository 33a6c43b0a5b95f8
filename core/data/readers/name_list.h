// NameList: byte strings by number: ids, classes, columns, tokens. There may be millions.
//
// Names are packed into two tensors, so that a list is cached, mapped and stored like any other column. Copies share
// the memory. Threads: const after construction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace convoy {

class NameList {
 public:
  NameList() = default;
  explicit NameList(const std::vector<std::string_view>& names);
  explicit NameList(const std::vector<std::string>& names);
  // Makes a list from the tensors of bytes() and ends(), for example from a file. Error(corrupt_data) if they do not
  // match.
  NameList(at::Tensor bytes, at::Tensor ends);

  int64_t size() const { return ends_.defined() ? ends_.numel() : 0; }
  std::string_view operator[](int64_t number) const;
  std::vector<std::string> strings() const;
  const at::Tensor& bytes() const { return bytes_; }  // uint8, all names, concatenated
  const at::Tensor& ends() const { return ends_; }    // int64 [size]: end offset of each name

  bool operator==(const NameList& other) const;
  bool operator!=(const NameList& other) const { return !(*this == other); }

 private:
  at::Tensor bytes_, ends_;
};

// Maps names to their numbers. The list must outlive it.
class NameNumbers {
 public:
  explicit NameNumbers(const NameList& names);
  int64_t find(std::string_view name) const;  // -1: not found
  // result[i] is the number of names[i], or -1.
  std::vector<int64_t> find_all(const NameList& names) const;

 private:
  std::unordered_map<std::string_view, int64_t> numbers_;
};

}  // namespace convoy
