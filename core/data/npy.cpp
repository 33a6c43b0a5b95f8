#include "core/data/npy.h"

#include <ATen/ops/from_blob.h>

#include <limits>
#include <map>
#include <vector>

#include "core/data/mapped_file.h"
#include "core/data/npy_header.h"
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

}  // namespace

at::Tensor read_npy(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  const auto fail = [&](const std::string& reason) { throw Error(Failure::corrupt_data, str(path, ": ", reason)); };
  const NpyHeader header = read_npy_header(path, text);
  const std::vector<int64_t>& sizes = header.shape;
  const size_t data = header.data;
  if (header.fortran) fail("is in Fortran order; in Python: numpy.save(path, numpy.ascontiguousarray(a))");

  const at::ScalarType dtype = dtype_of(path, header.type);
  auto bytes = int64_t(at::elementSize(dtype));
  for (int64_t size : sizes) {
    if (size > 0 && bytes > std::numeric_limits<int64_t>::max() / size) fail("has impossible sizes");
    bytes *= size;
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
