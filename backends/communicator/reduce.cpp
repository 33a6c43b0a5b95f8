// Reductions in blocks that stay in the first-level cache. The compiler can vectorise the loops of fp32, fp64 and
// integers.
#include "backends/communicator/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/base/error.h"

namespace convoy {
namespace {

constexpr int64_t block = 2048;  // elements

// Integers wrap around, as in LibTorch; in C++ only unsigned overflow is defined.
template <class T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <class T>
T times(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// Reduces two inputs in one pass. `out` may be one of them: iterations do not depend on each other.
template <class T>
void combine(T* out, const T* a, const T* b, int64_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = plus(a[i], b[i]);
      break;
    case ReduceOp::product:
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = times(a[i], b[i]);
      break;
    case ReduceOp::min:
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = b[i] < a[i] ? b[i] : a[i];
      break;
    case ReduceOp::max:
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) out[i] = a[i] < b[i] ? b[i] : a[i];
      break;
  }
}

template <class T>
void reduce_numbers(T* out, const std::vector<const void*>& in, int64_t elements, ReduceOp op) {
  if (in.size() == 2) return combine(out, static_cast<const T*>(in[0]), static_cast<const T*>(in[1]), elements, op);
  T sum[block];
  for (int64_t begin = 0; begin < elements; begin += block) {
    int64_t n = std::min(block, elements - begin);
    std::memcpy(sum, static_cast<const T*>(in[0]) + begin, n * sizeof(T));
    for (size_t k = 1; k < in.size(); ++k) combine(sum, sum, static_cast<const T*>(in[k]) + begin, n, op);
    std::memcpy(out + begin, sum, n * sizeof(T));
  }
}

// 16-bit formats: sums in float, rounded once.
template <class Short>
void reduce_short(Short* out, const std::vector<const void*>& in, int64_t elements, ReduceOp op) {
  float sum[block];
  float next[block];
  const auto read = [](float* to, const void* from, int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<const Short*>(from)[begin + i];
  };
  for (int64_t begin = 0; begin < elements; begin += block) {
    const int64_t n = std::min(block, elements - begin);
    read(sum, in[0], begin, n);
    for (size_t k = 1; k < in.size(); ++k) {
      read(next, in[k], begin, n);
      combine(sum, sum, next, n, op);
    }
    for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<Short>(sum[i]);
  }
}

}  // namespace

void reduce(void* out, const std::vector<const void*>& in, int64_t elements, at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kHalf:
      return reduce_short(static_cast<at::Half*>(out), in, elements, op);
    case at::kBFloat16:
      return reduce_short(static_cast<at::BFloat16*>(out), in, elements, op);
    case at::kFloat:
      return reduce_numbers(static_cast<float*>(out), in, elements, op);
    case at::kDouble:
      return reduce_numbers(static_cast<double*>(out), in, elements, op);
    case at::kInt:
      return reduce_numbers(static_cast<int32_t*>(out), in, elements, op);
    case at::kLong:
      return reduce_numbers(static_cast<int64_t*>(out), in, elements, op);
    case at::kByte:
      return reduce_numbers(static_cast<uint8_t*>(out), in, elements, op);
    default:
      CONVOY_CHECK(false, "no reduction of ", c10::toString(dtype));
  }
}

}  // namespace convoy
