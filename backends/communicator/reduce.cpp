// Reductions in blocks that stay in the first-level cache. The loops are written so that the compiler vectorises them.
#include "backends/communicator/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/vectorised.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

CONVOY_VECTORISED void add(float* out, const float* a, const float* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
CONVOY_VECTORISED void add(double* out, const double* a, const double* b, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

// Reduces two inputs in one pass. `out` may be one of them: iterations do not depend on each other.
template <class T>
void combine(T* out, const T* a, const T* b, int64_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      if constexpr (std::is_floating_point_v<T>) return add(out, a, b, n);
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

struct BrainFloat {
  static void to_float(float* __restrict to, const uint16_t* __restrict from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::f32_from_bits(from[i]);
  }
  static void to_half(uint16_t* __restrict to, const float* __restrict from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::round_to_nearest_even(from[i]);
  }
};

#if defined(__x86_64__)
// The CPU may lack these instructions, so the choice is made at run time.
__attribute__((target("avx,f16c"))) void to_float_f16c(float* to, const uint16_t* from, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < n; ++i) to[i] = _cvtsh_ss(from[i]);
}
__attribute__((target("avx,f16c"))) void to_half_f16c(uint16_t* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), 0));
  }
  for (; i < n; ++i) to[i] = _cvtss_sh(from[i], 0);
}
bool has_f16c() { return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"); }
#else
void to_float_f16c(float*, const uint16_t*, int64_t) {}
void to_half_f16c(uint16_t*, const float*, int64_t) {}
bool has_f16c() { return false; }
#endif

struct HalfFloat {
  static void to_float(float* to, const uint16_t* from, int64_t n) {
    static const bool fast = has_f16c();
    if (fast) return to_float_f16c(to, from, n);
    for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::fp16_ieee_to_fp32_value(from[i]);
  }
  static void to_half(uint16_t* to, const float* from, int64_t n) {
    static const bool fast = has_f16c();
    if (fast) return to_half_f16c(to, from, n);
    for (int64_t i = 0; i < n; ++i) to[i] = c10::detail::fp16_ieee_from_fp32_value(from[i]);
  }
};

template <class Format>
void reduce_short(uint16_t* out, const std::vector<const void*>& in, int64_t elements, ReduceOp op) {
  float sum[block];
  float next[block];
  for (int64_t begin = 0; begin < elements; begin += block) {
    int64_t n = std::min(block, elements - begin);
    Format::to_float(sum, static_cast<const uint16_t*>(in[0]) + begin, n);
    for (size_t k = 1; k < in.size(); ++k) {
      Format::to_float(next, static_cast<const uint16_t*>(in[k]) + begin, n);
      combine(sum, sum, next, n, op);
    }
    Format::to_half(out + begin, sum, n);
  }
}

}  // namespace

void reduce(void* out, const std::vector<const void*>& in, int64_t elements, at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kHalf:
      return reduce_short<HalfFloat>(static_cast<uint16_t*>(out), in, elements, op);
    case at::kBFloat16:
      return reduce_short<BrainFloat>(static_cast<uint16_t*>(out), in, elements, op);
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
