#include "core/tensors/skinny_product.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.h"
#include "core/base/vectorised.h"
#include "core/tensors/tensor_memory.h"

// Vectors are never parameters or results of functions with external linkage.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace convoy {

namespace {

// Loops that this machine can run, widest first.
template <class Loop>
std::vector<Loop> of_this_machine([[maybe_unused]] const Loop& avx512, [[maybe_unused]] const Loop& avx2,
                                  const Loop& any) {
  std::vector<Loop> list;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) list.push_back(avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list.push_back(avx2);
#endif
  list.push_back(any);
  return list;
}

}  // namespace

// --- Skinny layers: loops ---
//
// A tile of rows and vectors stays in registers while all of `depth`, or 256 rows, pass through it. So sums of long
// columns are sums of sums, as in LibTorch.

namespace {

constexpr int64_t together = 256;  // number of rows whose products are summed in registers

#define CONVOY_INLINE inline __attribute__((always_inline))

// A vector of that many bytes, loaded from any address.
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

// Computes `rows` rows of the result, the first from row `a`, and `vectors` vectors of its columns. Only the first
// `columns` columns are valid. Whole vectors are written up to `end`: elements after `columns` overwrite the next row,
// which is written later.
template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void product_block(const T* __restrict a, const T* __restrict b, const T* first, T* __restrict out,
                                 const T* end, int64_t depth, int64_t stride, int64_t width, int64_t columns,
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
    for (int v = 0; v < vectors; ++v) w[v] = as<V>(b + k * stride + v * lanes);
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
                                   int64_t depth, int64_t stride, int64_t width, int64_t columns, bool relu) {
  int64_t r = 0;
  for (; r + rows <= n; r += rows)
    product_block<T, bytes, rows, vectors>(a + r * depth, b, first, out + r * width, end, depth, stride, width, columns,
                                           relu);
  for (; r < n; ++r)
    product_block<T, bytes, 1, vectors>(a + r * depth, b, first, out + r * width, end, depth, stride, width, columns,
                                        relu);
}

// Goes from the last columns to the first: vectors of the last columns overwrite the first columns of the next row.
template <class T, int bytes, int rows>
CONVOY_INLINE void product_body(const T* a, const T* b, const T* first, T* out, int64_t n, int64_t depth, int64_t width,
                                bool relu) {
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  const int64_t stride = padded_width<T>(width);
  const T* const end = out + n * width;
  for (int64_t column = (width - 1) / (2 * lanes) * 2 * lanes; column >= 0; column -= 2 * lanes) {
    const int64_t columns = std::min(width - column, 2 * lanes);
    const T* const start = first == nullptr ? nullptr : first + column;
    if (columns > lanes)
      product_columns<T, bytes, rows, 2>(a, b + column, start, out + column, end, n, depth, stride, width, columns,
                                         relu);
    else
      product_columns<T, bytes, rows, 1>(a, b + column, start, out + column, end, n, depth, stride, width, columns,
                                         relu);
  }
}

// Computes `rows` rows of the result and `vectors` vectors of its columns: sums of products over n rows. The last
// vector may reach beyond `columns`, into the next row of `right`; those products are dropped. Only the first `whole`
// rows allow this; later rows are copied first, because the vector would reach beyond the end of `right`.
template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void outer_block(const T* __restrict left, const T* __restrict right, T* __restrict out, int64_t n,
                               int64_t whole, int64_t stride, int64_t width, int64_t columns, bool add) {
  using V = Vector<T, bytes>;
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  V sums[rows][vectors] = {};
  const auto add_row = [&](const T* l, const T* r) __attribute__((always_inline)) {
    V x[vectors];
    for (int v = 0; v < vectors; ++v) x[v] = as<V>(r + v * lanes);
    for (int m = 0; m < rows; ++m)
      for (int v = 0; v < vectors; ++v) sums[m][v] += l[m] * x[v];
  };
  for (int64_t r = 0; r < whole; ++r) add_row(left + r * stride, right + r * width);
  for (int64_t r = whole; r < n; ++r) {
    T copy[vectors * lanes] = {};
    std::memcpy(copy, right + r * width, size_t(columns) * sizeof(T));
    add_row(left + r * stride, copy);
  }
  for (int m = 0; m < rows; ++m) {
    T row[vectors * lanes];
    std::memcpy(row, sums[m], sizeof row);
    for (int64_t k = 0; k < columns; ++k) out[m * width + k] = add ? out[m * width + k] + row[k] : row[k];
  }
}

template <class T, int bytes, int rows, int vectors>
CONVOY_INLINE void outer_columns(const T* left, const T* right, T* out, int64_t n, int64_t whole, int64_t stride,
                                 int64_t height, int64_t width, int64_t columns, bool add) {
  int64_t m = 0;
  for (; m + rows <= height; m += rows)
    outer_block<T, bytes, rows, vectors>(left + m, right, out + m * width, n, whole, stride, width, columns, add);
  for (; m < height; ++m)
    outer_block<T, bytes, 1, vectors>(left + m, right, out + m * width, n, whole, stride, width, columns, add);
}

template <class T, int bytes, int rows>
CONVOY_INLINE void outer_body(const T* left, const T* right, T* out, int64_t n, int64_t stride, int64_t height,
                              int64_t width, bool add) {
  constexpr int64_t lanes = bytes / int64_t(sizeof(T));
  if (n == 0 && !add) std::fill_n(out, height * width, T(0));
  for (int64_t begin = 0; begin < n; begin += together) {
    const int64_t some = std::min(together, n - begin);
    const T *const l = left + begin * stride, *const r = right + begin * width;
    for (int64_t column = 0; column < width;) {
      const int64_t rest = width - column;
      const int64_t vectors = rest > lanes ? 2 : 1, columns = std::min(rest, vectors * lanes);
      // Number of rows from which vectors · lanes elements can be read, from `column` on.
      const int64_t spare = (n - begin) * width - column - vectors * lanes;
      const int64_t whole = spare < 0 ? 0 : std::min(some, spare / width + 1);
      if (vectors == 2)
        outer_columns<T, bytes, rows, 2>(l, r + column, out + column, some, whole, stride, height, width, columns,
                                         add || begin > 0);
      else
        outer_columns<T, bytes, rows, 1>(l, r + column, out + column, some, whole, stride, height, width, columns,
                                         add || begin > 0);
      column += columns;
    }
  }
}

// One set of loops: `bytes` per vector, sums of `rows` rows in registers.
#define CONVOY_SKINNY_LOOPS(T, name, target, bytes, rows)                                                             \
  target void name##_product(const T* a, const T* b, const T* first, T* out, int64_t n, int64_t depth, int64_t width, \
                             bool relu) {                                                                             \
    product_body<T, bytes, rows>(a, b, first, out, n, depth, width, relu);                                            \
  }                                                                                                                   \
  target void name##_outer(const T* left, const T* right, T* out, int64_t n, int64_t stride, int64_t height,          \
                           int64_t width, bool add) {                                                                 \
    outer_body<T, bytes, rows>(left, right, out, n, stride, height, width, add);                                      \
  }                                                                                                                   \
  constexpr SkinnyLoops<T> name = {name##_product, name##_outer};

#define CONVOY_NO_TARGET
CONVOY_SKINNY_LOOPS(float, any_float, CONVOY_NO_TARGET, 16, 4)
CONVOY_SKINNY_LOOPS(double, any_double, CONVOY_NO_TARGET, 16, 4)
#if defined(__x86_64__)
CONVOY_SKINNY_LOOPS(float, avx2_float, __attribute__((target("avx2,fma"))), 32, 4)
CONVOY_SKINNY_LOOPS(double, avx2_double, __attribute__((target("avx2,fma"))), 32, 4)
CONVOY_SKINNY_LOOPS(float, avx512_float, __attribute__((target("avx512f,fma"))), 64, 8)
CONVOY_SKINNY_LOOPS(double, avx512_double, __attribute__((target("avx512f,fma"))), 64, 8)
#else
constexpr auto &avx2_float = any_float, &avx512_float = any_float;
constexpr auto &avx2_double = any_double, &avx512_double = any_double;
#endif

}  // namespace

const std::vector<SkinnyLoops<float>>& skinny_loops(float) {
  static const auto list = of_this_machine(avx512_float, avx2_float, any_float);
  return list;
}

const std::vector<SkinnyLoops<double>>& skinny_loops(double) {
  static const auto list = of_this_machine(avx512_double, avx2_double, any_double);
  return list;
}

// --- Skinny layers: functions of tensors ---

namespace {

constexpr int64_t widest = 64;      // features; weights of wider layers do not fit into the L1 cache
constexpr int64_t grain = 1 << 16;  // minimal number of products per thread
constexpr int64_t summed = 256;     // rows whose sum is a term of the total, as in the loops

// A matrix [rows, columns], or one for each of K members [K, rows, columns] that may have gaps between them.
int64_t members_of(const at::Tensor& weight) { return weight.dim() == 3 ? weight.size(0) : 1; }
bool is_whole(const at::Tensor& weight) { return (weight.dim() == 3 ? weight.select(0, 0) : weight).is_contiguous(); }
// Part of member `member`; the first for operands without members.
template <class T>
const T* part(const at::Tensor& tensor, int64_t member) {
  return tensor.const_data_ptr<T>() + member * tensor.stride(0);
}
template <class T>
T* part_to_write(const at::Tensor& tensor, int64_t member) {
  return tensor.mutable_data_ptr<T>() + member * tensor.stride(0);
}

int64_t rows_a_thread(int64_t depth, int64_t width) { return std::max<int64_t>(1, grain / (depth * width)); }

// Weights in the layout of the loops: [depth, width] with rows padded_width(width) apart.
template <class T>
struct Padded {
  alignas(64) std::array<T, widest * widest> values;
  Padded(const T* from, int64_t depth, int64_t width, bool turned) {
    const int64_t stride = padded_width<T>(width);
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t c = 0; c < width; ++c) values[k * stride + c] = turned ? from[c * depth + k] : from[k * width + c];
    for (int64_t k = 0; k < depth; ++k) std::fill_n(&values[k * stride + width], stride - width, T(0));
  }
};

template <class T>
void product(const T* from, const Padded<T>& weights, const T* first, T* to, int64_t rows, int64_t depth, int64_t width,
             bool relu) {
  at::parallel_for(0, rows, rows_a_thread(depth, width), [&](int64_t begin, int64_t end) {
    skinny_loops(T()).front().product(from + begin * depth, weights.values.data(), first, to + begin * width,
                                      end - begin, depth, width, relu);
  });
}

template <class T>
inline __attribute__((always_inline)) void relu_body(const T* __restrict gradient, const T* __restrict output,
                                                     T* __restrict to, int64_t rows, int64_t width, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, gradient += stride, output += width, to += width)
    for (int64_t c = 0; c < width; ++c) to[c] = output[c] <= 0 ? T(0) : gradient[c];
}

template <class T>
inline __attribute__((always_inline)) void sum_body(const T* __restrict rows, T* __restrict out, int64_t n,
                                                    int64_t width, bool add) {
  if (!add) std::fill_n(out, width, T(0));
  // Rows are narrow: `widest` elements, which are several rows, are added at once.
  const int64_t step = widest % width == 0 ? widest : width;
  for (int64_t begin = 0; begin < n; begin += summed) {
    T part[widest] = {};
    const T* __restrict from = rows + begin * width;
    const int64_t elements = std::min(n - begin, summed) * width;
    int64_t i = 0;
    if (step == widest)
      for (; i + widest <= elements; i += widest)
        for (int64_t k = 0; k < widest; ++k) part[k] += from[i + k];
    for (; i < elements; i += step)
      for (int64_t k = 0; k < std::min(step, elements - i); ++k) part[k] += from[i + k];
    for (int64_t k = 0; k < step; ++k) out[k % width] += part[k];
  }
}

// `stride`: distance between rows of the gradient.
#define CONVOY_NARROW_PASSES(T)                                                                            \
  CONVOY_VECTORISED void relu_loop(const T* gradient, const T* output, T* to, int64_t rows, int64_t width, \
                                   int64_t stride) {                                                       \
    relu_body(gradient, output, to, rows, width, stride);                                                  \
  }                                                                                                        \
  CONVOY_VECTORISED void sum_loop(const T* rows, T* out, int64_t n, int64_t width, bool add) {             \
    sum_body(rows, out, n, width, add);                                                                    \
  }

CONVOY_NARROW_PASSES(float)
CONVOY_NARROW_PASSES(double)

}  // namespace

bool is_skinny_operand(const at::Tensor& gradient, at::ScalarType dtype) {
  return gradient.scalar_type() == dtype && gradient.is_cpu() && !at::isTensorSubclassLike(gradient);
}

bool is_skinny(const at::Tensor& input, const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  if ((dtype != at::kFloat && dtype != at::kDouble) || !weight.is_cpu() || weight.dim() < 2 || weight.dim() > 3 ||
      weight.numel() == 0 || weight.size(-2) > widest || weight.size(-1) > widest || !is_whole(weight))
    return false;
  const bool fits = weight.dim() == 2 ? input.dim() > 0 : input.dim() == 3 && input.size(0) == weight.size(0);
  return fits && input.size(-1) == weight.size(-1) && input.numel() > 0 && is_skinny_operand(input, dtype) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

bool is_skinny_sum(const at::Tensor& rows, const at::Tensor& out) {
  const auto dtype = out.scalar_type();
  if (out.dim() < 1 || out.dim() > 2 || rows.dim() != out.dim() + 1 || out.size(-1) != rows.size(-1)) return false;
  return (dtype == at::kFloat || dtype == at::kDouble) && is_skinny_operand(rows, dtype) && out.stride(-1) == 1 &&
         (out.dim() == 1 || out.size(0) == rows.size(0)) && out.size(-1) <= widest && rows.numel() > 0;
}

at::Tensor skinny_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, bool relu) {
  const at::Tensor rows = input.contiguous();
  std::vector<int64_t> shape = input.sizes().vec();
  const int64_t depth = shape.back(), width = shape.back() = weight.size(-2);
  at::Tensor out = at::empty(shape, weight.options().requires_grad(false));
  const int64_t members = members_of(weight), each = rows.numel() / depth / members;
  CONVOY_CHECK(!bias.defined() || (bias.numel() == members * width && bias.stride(-1) == 1), "a bias of shape ",
               bias.sizes(), " for weights of shape ", weight.sizes());
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "skinny_linear", [&] {
    for (int64_t member = 0; member < members; ++member) {
      const Padded<scalar_t> weights(part<scalar_t>(weight, member), depth, width, true);
      std::array<scalar_t, widest> first{};
      if (bias.defined()) std::copy_n(part<scalar_t>(bias, member), width, first.begin());
      product<scalar_t>(part<scalar_t>(rows, member), weights, bias.defined() ? first.data() : nullptr,
                        part_to_write<scalar_t>(out, member), each, depth, width, relu);
    }
  });
  return out;
}

at::Tensor skinny_relu_gradient(const at::Tensor& gradient, const at::Tensor& output) {
  const int64_t apart = row_stride(gradient);  // a gradient may be columns of a wider one, as those of cat() are
  const at::Tensor given = apart > 0 ? gradient : gradient.contiguous(), kept = output.contiguous();
  at::Tensor out = at::empty(given.sizes(), given.options());
  // Without gaps, all rows are one.
  const bool gaps = apart > 0 && !given.is_contiguous();
  const int64_t width = gaps ? given.size(-1) : 1, stride = gaps ? apart : 1;
  AT_DISPATCH_FLOATING_TYPES(given.scalar_type(), "skinny_relu_gradient", [&] {
    const auto* from = given.const_data_ptr<scalar_t>();
    const auto* positive = kept.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, given.numel() / width, std::max<int64_t>(1, grain / width), [&](int64_t begin, int64_t end) {
      if (gaps)
        relu_loop(from + begin * stride, positive + begin * width, to + begin * width, end - begin, width, stride);
      else
        relu_loop(from + begin, positive + begin, to + begin, 1, end - begin, 0);
    });
  });
  return out;
}

at::Tensor skinny_input_gradient(const at::Tensor& gradient, const at::Tensor& weight) {
  const at::Tensor rows = gradient.contiguous();
  std::vector<int64_t> shape = rows.sizes().vec();
  const int64_t depth = shape.back(), width = shape.back() = weight.size(-1);
  at::Tensor out = at::empty(shape, rows.options());
  const int64_t members = members_of(weight), each = rows.numel() / depth / members;
  AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "skinny_input_gradient", [&] {
    for (int64_t member = 0; member < members; ++member) {
      const Padded<scalar_t> weights(part<scalar_t>(weight, member), depth, width, false);
      product<scalar_t>(part<scalar_t>(rows, member), weights, nullptr, part_to_write<scalar_t>(out, member), each,
                        depth, width, false);
    }
  });
  return out;
}

void skinny_weight_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& out, bool add) {
  const at::Tensor left = gradient.contiguous(), right = input.contiguous();
  const int64_t n = left.size(-2), height = left.size(-1), width = right.size(-1);
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "skinny_weight_gradient", [&] {
    for (int64_t member = 0; member < members_of(out); ++member) {
      const auto *l = part<scalar_t>(left, member), *r = part<scalar_t>(right, member);
      auto* to = part_to_write<scalar_t>(out, member);
      // Parallel over rows of the result, so that no sum depends on the number of threads.
      at::parallel_for(0, height, std::max<int64_t>(1, grain / (n * width)), [&](int64_t begin, int64_t end) {
        skinny_loops(scalar_t()).front().outer(l + begin, r, to + begin * width, n, height, end - begin, width, add);
      });
    }
  });
}

void skinny_bias_gradient(const at::Tensor& gradient, const at::Tensor& out, bool add) {
  const at::Tensor rows = gradient.contiguous();
  const int64_t n = rows.size(-2), width = rows.size(-1);
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "skinny_bias_gradient", [&] {
    for (int64_t member = 0; member < members_of(rows); ++member)
      sum_loop(part<scalar_t>(rows, member), part_to_write<scalar_t>(out, member), n, width, add);
  });
}

}  // namespace convoy
