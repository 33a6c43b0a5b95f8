// The loops of narrow_product.h over plain memory, row-major and without gaps, compiled for several widths of vectors. Without
// LibTorch; T is float or double.
#pragma once
#include <cstdint>
#include <vector>

namespace convoy {

// How many elements the rows of `weights` must be apart for the widest vectors: `width` rounded up.
template <class T>
constexpr int64_t padded_width(int64_t width) {
  constexpr int64_t lanes = 64 / int64_t(sizeof(T));
  return (width + lanes - 1) / lanes * lanes;
}

template <class T>
struct NarrowLoops {
  // out [n, width] = rows [n, depth] · weights [depth, width], whose rows lie padded_width(width) apart, with anything behind
  // them. `first` [padded_width(width)]: what sums begin with; null: 0. `relu` of the result.
  void (*product)(const T* rows, const T* weights, const T* first, T* out, int64_t n, int64_t depth, int64_t width,
                  bool relu);
  // out [height, width] = left [n, height]ᵀ · right [n, width]; `add`: to what is there. Rows of `left` lie `apart`.
  void (*outer)(const T* left, const T* right, T* out, int64_t n, int64_t apart, int64_t height, int64_t width,
                bool add);
};
// Those that this machine can run, the widest first. The argument says the type.
const std::vector<NarrowLoops<float>>& narrow_loops(float);
const std::vector<NarrowLoops<double>>& narrow_loops(double);

}  // namespace convoy
