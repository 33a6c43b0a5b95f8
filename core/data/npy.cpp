// Header: "\x93NUMPY", version, length, a Python dictionary of three keys.
#include "core/data/npy.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "core/data/mapped_file.h"
#include "core/data/residence.h"
#include "core/error.h"

namespace convoy {
namespace {

at::ScalarType dtype_of(const std::string& path, const std::string& described) {
  static const std::map<std::string, at::ScalarType> known{
      {"<f8", at::kDouble}, {"<f4", at::kFloat}, {"<f2", at::kHalf}, {"<i8", at::kLong}, {"<i4", at::kInt},
      {"<i2", at::kShort},  {"|i1", at::kChar},  {"|u1", at::kByte}, {"|b1", at::kBool}};
  const auto found = known.find(described);
  if (found != known.end()) return found->second;
  throw Error(Failure::corrupt_data, str(path, ": elements of type ", described,
                                         " cannot be read; in Python: numpy.save(path, a.astype('float32'))"));
}

// What follows a key of the header's dictionary, without leading spaces; "" where the key is missing.
std::string_view after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

// The text between `open`, which comes first, and `close`; nothing where it is otherwise.
std::optional<std::string> enclosed(std::string_view text, char open, char close) {
  const size_t end = text.find(close, 1);
  if (text.empty() || text[0] != open || end == std::string_view::npos) return std::nullopt;
  return std::string(text.substr(1, end - 1));
}

}  // namespace

at::Tensor read_npy(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const auto fail = [&](const std::string& reason) { throw Error(Failure::corrupt_data, str(path, ": ", reason)); };
  if (text.size() < 12 || text.substr(0, 6) != "\x93NUMPY") fail("is no .npy file");
  const int major = text[6];
  if (major < 1 || major > 3) fail(str("is of .npy version ", major, "; 1 to 3 can be read"));
  const size_t length_bytes = major == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = length_bytes; i > 0; --i) length = length << 8 | static_cast<unsigned char>(text[8 + i - 1]);
  const size_t data = 8 + length_bytes + length;
  if (data > text.size()) fail("ends within its header");

  const std::string_view header = text.substr(8 + length_bytes, length);
  const auto descr = enclosed(after(header, "'descr':"), '\'', '\'');
  const auto shape = enclosed(after(header, "'shape':"), '(', ')');
  const std::string_view order = after(header, "'fortran_order':");
  const bool fortran = order.substr(0, 4) == "True";
  if (!descr || !shape || shape->find_first_not_of("0123456789, ") != std::string::npos ||
      (!fortran && order.substr(0, 5) != "False"))
    fail("has a header that is not of plain numbers");
  if (fortran) fail("is in Fortran order; in Python: numpy.save(path, numpy.ascontiguousarray(a))");

  const at::ScalarType dtype = dtype_of(path, *descr);
  std::vector<int64_t> sizes;
  auto bytes = int64_t(at::elementSize(dtype));
  for (size_t at = 0; (at = shape->find_first_of("0123456789", at)) != std::string::npos;) {
    const std::string digits = shape->substr(at, shape->find_first_not_of("0123456789", at) - at);
    at += digits.size();
    if (digits.size() > 18) fail("has impossible sizes");
    sizes.push_back(std::stoll(digits));
    if (sizes.back() > 0 && bytes > std::numeric_limits<int64_t>::max() / sizes.back()) fail("has impossible sizes");
    bytes *= sizes.back();
  }
  if (sizes.empty()) fail("holds a single number and no rows");
  if (size_t(bytes) != text.size() - data) {
    fail(str("holds ", text.size() - data, " bytes of data where its header says ", bytes));
  }
  tell_mapped(path, path, bytes);
  // The mapping is read-only; nothing in convoy writes to data.
  void* start = const_cast<char*>(text.data() + data);
  return at::from_blob(
      start, sizes, [file](void*) {}, at::TensorOptions(dtype));
}

}  // namespace convoy
