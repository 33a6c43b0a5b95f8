#include "core/tensors/matrix_vector.h"

#include <ATen/Parallel.h>

#include <algorithm>

#pragma GCC diagnostic ignored "-Wpsabi"

namespace convoy {
namespace {

template <int bytes>
struct FloatsOf {
  typedef float type __attribute__((vector_size(bytes), aligned(alignof(float)), may_alias));
};

// `rows` rows at once share the loads of the vector.
template <int bytes, int rows>
inline __attribute__((always_inline)) void matrix_rows(const float* matrix, const float* vector, const float* first,
                                                       float* out, int64_t depth, int64_t apart) {
  using V = typename FloatsOf<bytes>::type;
  constexpr int64_t lanes = bytes / int64_t(sizeof(float));
  const auto load = [](const float* from) __attribute__((always_inline)) { return *reinterpret_cast<const V*>(from); };
  V sums[rows] = {};
  int64_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    const V x = load(vector + k);
    for (int r = 0; r < rows; ++r) sums[r] += x * load(matrix + r * apart + k);
  }
  for (int r = 0; r < rows; ++r) {
    float lane[lanes];
    __builtin_memcpy(lane, &sums[r], sizeof lane);
    for (int64_t half = lanes / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) lane[i] += lane[i + half];
    float sum = lane[0];
    for (int64_t rest = k; rest < depth; ++rest) sum += matrix[r * apart + rest] * vector[rest];
    out[r] = first == nullptr ? sum : sum + first[r];
  }
}

template <int bytes>
inline __attribute__((always_inline)) void matrix_vector_body(const float* matrix, const float* vector,
                                                              const float* first, float* out, int64_t rows,
                                                              int64_t depth, int64_t apart) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    matrix_rows<bytes, 4>(matrix + r * apart, vector, first == nullptr ? nullptr : first + r, out + r, depth, apart);
  for (; r < rows; ++r)
    matrix_rows<bytes, 1>(matrix + r * apart, vector, first == nullptr ? nullptr : first + r, out + r, depth, apart);
}

#define CONVOY_MATRIX_VECTOR(name, target, bytes)                                                          \
  target void name(const float* matrix, const float* vector, const float* first, float* out, int64_t rows, \
                   int64_t depth, int64_t apart) {                                                         \
    matrix_vector_body<bytes>(matrix, vector, first, out, rows, depth, apart);                             \
  }

CONVOY_MATRIX_VECTOR(matrix_vector_any, , 16)
#if defined(__x86_64__)
CONVOY_MATRIX_VECTOR(matrix_vector_avx2, __attribute__((target("avx2,fma"))), 32)
CONVOY_MATRIX_VECTOR(matrix_vector_avx512, __attribute__((target("avx512f,fma"))), 64)
#endif

}  // namespace

const std::vector<MatrixVector>& matrix_vector_loops() {
  static const std::vector<MatrixVector> loops = [] {
    std::vector<MatrixVector> list;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) list.push_back(matrix_vector_avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list.push_back(matrix_vector_avx2);
#endif
    list.push_back(matrix_vector_any);
    return list;
  }();
  return loops;
}

void matrix_vector(const float* matrix, const float* vector, const float* first, float* out, int64_t rows,
                   int64_t depth) {
  constexpr int64_t grain = 1 << 18;  // fewer weights do not justify a thread
  const MatrixVector loop = matrix_vector_loops().front();
  const int64_t rows_a_thread = std::max<int64_t>(4, grain / std::max<int64_t>(depth, 1) / 4 * 4);
  at::parallel_for(0, rows, rows_a_thread, [&](int64_t begin, int64_t end) {
    loop(matrix + begin * depth, vector, first == nullptr ? nullptr : first + begin, out + begin, end - begin, depth,
         depth);
  });
}

}  // namespace convoy
