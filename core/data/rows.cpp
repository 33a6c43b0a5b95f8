// One tight loop per pair of types.
#include "core/data/rows.h"

#include <ATen/Dispatch.h>

#include <cstring>
#include <type_traits>

#include "core/error.h"

namespace convoy {
namespace {

template <class From, class To>
void copy_rows(const From* source, const int64_t* wanted, int64_t rows, int64_t width, To* out, To scale) {
  for (int64_t r = 0; r < rows; ++r) {
    const From* from = source + wanted[r] * width;
    To* to = out + r * width;
    if constexpr (std::is_same_v<From, To>) {
      if (scale == To(1)) {
        std::memcpy(to, from, size_t(width) * sizeof(To));
        continue;
      }
    }
    for (int64_t i = 0; i < width; ++i) to[i] = static_cast<To>(from[i]) * scale;
  }
}

}  // namespace

void gather_rows(const at::Tensor& source, const int64_t* wanted, int64_t rows, at::Tensor& out, double scale) {
  CONVOY_CHECK(source.is_contiguous() && out.is_contiguous(), "rows of strided tensors");
  if (source.size(0) == 0) return;
  const int64_t width = source.numel() / source.size(0);
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, source.scalar_type(), "gather_rows", [&] {
    const scalar_t* from = source.const_data_ptr<scalar_t>();
    switch (out.scalar_type()) {
      case at::kFloat:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<float>(), float(scale));
      case at::kDouble:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<double>(), scale);
      case at::kByte:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<uint8_t>(), uint8_t(scale));
      case at::kLong:
        return copy_rows(from, wanted, rows, width, out.mutable_data_ptr<int64_t>(), int64_t(scale));
      default:
        CONVOY_CHECK(false, "rows gathered into ", out.scalar_type());
    }
  });
}

}  // namespace convoy
