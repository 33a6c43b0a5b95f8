// Blocks of rows and of vectors are kept in registers while all of `depth`, or 256 rows, go through them: sums of long columns
// are thereby sums of sums, as LibTorch's are.
#include "strategies/parts/products/narrow_loops.h"

#include <algorithm>
#include <cstring>

// Vectors never leave a function.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace convoy {
namespace {

constexpr int64_t together = 256;  // rows whose products are summed in registers

#define CONVOY_INLINE inline __attribute__((always_inline))

// As many elements as go into a vector of that many bytes, wherever they lie.
template <class T, int bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
};

template <class T, int bytes>
using Vector = typename VectorOf<T, bytes>::type;

template <class V, class T>
CONVOY_INLINE V& as(T* memory) {
  return *reinterpret_cast<V*>(memory);
}
template <class V, class T>
CONVOY_INLINE const V& as(const T* memory) {
  return *reinterpret_cast<const V*>(memory);
}

// `rows` rows from the one that `a` begins with, `vectors` vectors of columns, of which the first `columns` count. Whole
// vectors are written up to `end`: what they hold beyond `columns` falls on the next row, which is written later.
template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void product_block(const T* __restrict a, const T* __restrict b, const T* first, T* __restrict out,
                                 const T* end, int64_t depth, int64_t apart, int64_t width, int64_t columns,
                                 bool relu) {
  using V = Vector<T, bytes>;
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  V sums[rows][vectors];
  for (int v = 0; v < vectors; ++v) {
    const V start = first == nullptr ? V{} : as<V>(first + v * lanes);
    for (int r = 0; r < rows; ++r) sums[r][v] = start;
  }
  for (int64_t k = 0; k < depth; ++k) {
    V w[vectors];
    for (int v = 0; v < vectors; ++v) w[v] = as<V>(b + k * apart + v * lanes);
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) sums[r][v] += a[r * depth + k] * w[v];
  }
  if (relu)
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < vectors; ++v) sums[r][v] = sums[r][v] < V{} ? V{} : sums[r][v];  // NaN stays
  for (int r = 0; r < rows; ++r) {
    if (end - (out + r * width) >= vectors * lanes)
      for (int v = 0; v < vectors; ++v) as<V>(out + r * width + v * lanes) = sums[r][v];
    else
      std::memcpy(out + r * width, sums[r], size_t(columns) * sizeof(T));
  }
}

template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void product_columns(const T* a, const T* b, const T* first, T* out, const T* end, int64_t n,
                                   int64_t depth, int64_t apart, int64_t width, int64_t columns, bool relu) {
  int64_t r = 0;
  for (; r + rows <= n; r += rows)
    product_block<T, bytes, rows, vectors>(a + r * depth, b, first, out + r * width, end, depth, apart, width, columns,
                                           relu);
  for (; r < n; ++r)
    product_block<T, bytes, 1, vectors>(a + r * depth, b, first, out + r * width, end, depth, apart, width, columns,
                                        relu);
}

// From the last columns to the first, which are written over what the last have spilled.
template <class T, int bytes, int rows>
CONVOY_INLINE void product_body(const T* a, const T* b, const T* first, T* out, int64_t n, int64_t depth, int64_t width,
                                bool relu) {
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  const int64_t apart = padded_width<T>(width);
  const T* const end = out + n * width;
  for (int64_t column = (width - 1) / (2 * lanes) * 2 * lanes; column >= 0; column -= 2 * lanes) {
    const int64_t columns = std::min(width - column, 2 * lanes);
    const T* const start = first == nullptr ? nullptr : first + column;
    if (columns > lanes)
      product_columns<T, bytes, rows, 2>(a, b + column, start, out + column, end, n, depth, apart, width, columns,
                                         relu);
    else
      product_columns<T, bytes, rows, 1>(a, b + column, start, out + column, end, n, depth, apart, width, columns,
                                         relu);
  }
}

// `rows` rows of the result and `vectors` vectors of its columns, over n rows of the operands. The last vector may be partly
// of the next row, whose products are thrown away; `whole` rows can be read like that.
template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void outer_block(const T* __restrict left, const T* __restrict right, T* __restrict out, int64_t n,
                               int64_t whole, int64_t apart, int64_t width, int64_t columns, bool add) {
  using V = Vector<T, bytes>;
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  V sums[rows][vectors] = {};
  const auto add_row = [&](const T* l, const T* r) __attribute__((always_inline)) {
    V x[vectors];
    for (int v = 0; v < vectors; ++v) x[v] = as<V>(r + v * lanes);
    for (int m = 0; m < rows; ++m)
      for (int v = 0; v < vectors; ++v) sums[m][v] += l[m] * x[v];
  };
  for (int64_t r = 0; r < whole; ++r) add_row(left + r * apart, right + r * width);
  for (int64_t r = whole; r < n; ++r) {
    T copy[vectors * lanes] = {};
    std::memcpy(copy, right + r * width, size_t(columns) * sizeof(T));
    add_row(left + r * apart, copy);
  }
  for (int m = 0; m < rows; ++m) {
    T row[vectors * lanes];
    std::memcpy(row, sums[m], sizeof row);
    for (int64_t k = 0; k < columns; ++k) out[m * width + k] = add ? out[m * width + k] + row[k] : row[k];
  }
}

template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void outer_columns(const T* left, const T* right, T* out, int64_t n, int64_t whole, int64_t apart,
                                 int64_t height, int64_t width, int64_t columns, bool add) {
  int64_t m = 0;
  for (; m + rows <= height; m += rows)
    outer_block<T, bytes, rows, vectors>(left + m, right, out + m * width, n, whole, apart, width, columns, add);
  for (; m < height; ++m)
    outer_block<T, bytes, 1, vectors>(left + m, right, out + m * width, n, whole, apart, width, columns, add);
}

template <class T, int bytes, int rows>
CONVOY_INLINE void outer_body(const T* left, const T* right, T* out, int64_t n, int64_t apart, int64_t height,
                              int64_t width, bool add) {
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  if (n == 0 && !add) std::fill_n(out, height * width, T(0));
  for (int64_t begin = 0; begin < n; begin += together) {
    const int64_t some = std::min(together, n - begin);
    const T *const l = left + begin * apart, *const r = right + begin * width;
    for (int64_t column = 0; column < width;) {
      const int64_t rest = width - column;
      const int64_t vectors = rest > lanes ? 2 : 1, columns = std::min(rest, vectors * lanes);
      // Rows from whose `column` that many elements are there.
      const int64_t behind = (n - begin) * width - column - vectors * lanes;
      const int64_t whole = behind < 0 ? 0 : std::min(some, behind / width + 1);
      if (vectors == 2)
        outer_columns<T, bytes, rows, 2>(l, r + column, out + column, some, whole, apart, height, width, columns,
                                         add || begin > 0);
      else
        outer_columns<T, bytes, rows, 1>(l, r + column, out + column, some, whole, apart, height, width, columns,
                                         add || begin > 0);
      column += columns;
    }
  }
}

// One set of loops: `bytes` of a vector, `rows` that registers hold the sums of.
#define CONVOY_NARROW_LOOPS(T, name, target, bytes, rows)                                                             \
  target void name##_product(const T* a, const T* b, const T* first, T* out, int64_t n, int64_t depth, int64_t width, \
                             bool relu) {                                                                             \
    product_body<T, bytes, rows>(a, b, first, out, n, depth, width, relu);                                            \
  }                                                                                                                   \
  target void name##_outer(const T* left, const T* right, T* out, int64_t n, int64_t apart, int64_t height,           \
                           int64_t width, bool add) {                                                                 \
    outer_body<T, bytes, rows>(left, right, out, n, apart, height, width, add);                                       \
  }                                                                                                                   \
  constexpr NarrowLoops<T> name = {name##_product, name##_outer};

#define CONVOY_NO_TARGET
CONVOY_NARROW_LOOPS(float, any_float, CONVOY_NO_TARGET, 16, 4)
CONVOY_NARROW_LOOPS(double, any_double, CONVOY_NO_TARGET, 16, 4)
#if defined(__x86_64__)
CONVOY_NARROW_LOOPS(float, avx2_float, __attribute__((target("avx2,fma"))), 32, 4)
CONVOY_NARROW_LOOPS(double, avx2_double, __attribute__((target("avx2,fma"))), 32, 4)
CONVOY_NARROW_LOOPS(float, avx512_float, __attribute__((target("avx512f,fma"))), 64, 8)
CONVOY_NARROW_LOOPS(double, avx512_double, __attribute__((target("avx512f,fma"))), 64, 8)
#else
constexpr auto &avx2_float = any_float, &avx512_float = any_float;
constexpr auto &avx2_double = any_double, &avx512_double = any_double;
#endif

template <class T>
std::vector<NarrowLoops<T>> of_this_machine([[maybe_unused]] const NarrowLoops<T>& avx512,
                                            [[maybe_unused]] const NarrowLoops<T>& avx2, const NarrowLoops<T>& any) {
  std::vector<NarrowLoops<T>> list;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) list.push_back(avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list.push_back(avx2);
#endif
  list.push_back(any);
  return list;
}

}  // namespace

const std::vector<NarrowLoops<float>>& narrow_loops(float) {
  static const auto list = of_this_machine(avx512_float, avx2_float, any_float);
  return list;
}

const std::vector<NarrowLoops<double>>& narrow_loops(double) {
  static const auto list = of_this_machine(avx512_double, avx2_double, any_double);
  return list;
}

}  // namespace convoy
