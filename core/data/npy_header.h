// The header of an .npy file: "\x93NUMPY", version, length, a Python dictionary of three keys. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

struct NpyHeader {
  std::string type;  // "<f4"
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t data = 0;  // where the elements begin
};

// `text`: the whole file. Throws Error(corrupt_data), with `path` in front, where it is no such header.
NpyHeader read_npy_header(const std::string& path, std::string_view text);

}  // namespace convoy
