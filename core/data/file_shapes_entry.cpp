// A file that is not there or damaged tells nothing here: the loader reports what is wrong.
#include "core/data/file_shapes.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/data/header.h"
#include "core/data/mapped_file.h"
#include "core/data/npy_header.h"
#include "core/error.h"

namespace convoy {
namespace {

using Shape = std::vector<int64_t>;

bool ends_in(const std::string& path, const std::string& end) {
  return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

// The first dimension counts rows.
FileShape of_one_row(const Shape& shape) {
  if (shape.empty()) return std::nullopt;
  return Shape(shape.begin() + 1, shape.end());
}

// An eight-byte length, then JSON: {name: {"shape": [...]}}.
FileShape safetensors_shape(std::string_view text, const std::string& tensor) {
  uint64_t length = 0;
  if (text.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, text.data(), sizeof length);
  if (length > text.size() - sizeof length) return std::nullopt;
  const Json header = Json::parse(text.substr(sizeof length, length), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || !header.contains(tensor) || !header[tensor].is_object()) return std::nullopt;
  Shape shape;
  for (const Json& size : header[tensor].value("shape", Json::array())) {
    if (!size.is_number_integer()) return std::nullopt;
    shape.push_back(size.get<int64_t>());
  }
  return of_one_row(shape);
}

FileShape csv_shape(const Options& options, const MappedFile& file) {
  const std::string& delimiter = options.text("delimiter");
  DelimitedReader reader(file.path(), file.text(), delimiter == "tab" ? '\t' : delimiter[0]);
  const Header header(reader, false, options.boolean("header"));
  const std::vector<std::string> chosen = options.texts("features");
  if (!chosen.empty()) return Shape{static_cast<int64_t>(chosen.size())};
  auto columns = static_cast<int64_t>(header.names().size());
  for (const char* other : {"target", "weight"})
    if (options.has(other) && header.has(options.text(other))) --columns;
  return Shape{columns};
}

}  // namespace

FileShape table_features_shape(const Options& options, const std::string& path) {
  try {
    const MappedFile file(path);
    if (ends_in(path, ".npy")) return of_one_row(read_npy_header(path, file.text()).shape);
    const std::vector<std::string> chosen = options.texts("features");
    if (ends_in(path, ".safetensors"))
      return safetensors_shape(file.text(), chosen.empty() ? "features" : chosen.front());
    return csv_shape(options, file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

FileShape fashion_features_shape(const Options& options) {
  const std::string name = options.text("path") + "/train-images-idx3-ubyte";
  for (const std::string& path : {name + ".gz", name}) {
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none)) continue;
    const gzFile file = gzopen(path.c_str(), "rb");  // reads plain files as well
    if (file == nullptr) return std::nullopt;
    unsigned char bytes[16] = {};
    const int got = gzread(file, bytes, sizeof bytes);
    gzclose(file);
    if (got != sizeof bytes || bytes[2] != 8 || bytes[3] != 3) return std::nullopt;
    const auto size = [&](size_t at) {
      return int64_t(bytes[at]) << 24 | int64_t(bytes[at + 1]) << 16 | int64_t(bytes[at + 2]) << 8 | bytes[at + 3];
    };
    return Shape{1, size(8), size(12)};
  }
  return std::nullopt;
}

}  // namespace convoy
