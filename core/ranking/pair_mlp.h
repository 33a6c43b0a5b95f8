// PairMlp: scores of pairs of a row and an item. Its first layer is a sum of a term of the row and a term of the item.
// Optionally the product of factors of both is added.
//
//   score(r, i) = bias + Σ_g u[r, g]·v[i, g] + Σ_h w[h]·h_L[h]
//   h_0 = relu(a[r] + b[i]),  h_l = relu(W_l·h_{l−1} + c_l)
//
// The hidden activations of a few dozen pairs stay in the caches. A score does not depend on the sizes of blocks or on
// threads. Operations per pair: 2·(G + Σ_l in_l·out_l + H_L), plus H_0.
// CPU, float and double. Threads: const after construction.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace convoy {

class PairMlp {
 public:
  struct Layer {
    at::Tensor weight, bias;  // [out, in]; [out] or undefined
  };
  struct Rows {
    at::Tensor factors, sums;  // u [B, G], a [B, H_0]; undefined: there is none
  };
  struct Items {
    at::Tensor factors, sums;  // transposed_factors(v), b [N, H_0]; undefined: there is none
  };

  // `layers`: the hidden layers after the first one. `output`: w [H_L]; undefined: no MLP. `bias`: [1] or undefined.
  // Copies the weights.
  PairMlp(const std::vector<Layer>& layers, const at::Tensor& output, const at::Tensor& bias, at::ScalarType dtype);

  // Factors of items [N, G] in the layout of `scores`: [G, N rounded up].
  static at::Tensor transposed_factors(const at::Tensor& factors);

  // out [B, N], contiguous.
  void scores(const Rows& rows, const Items& items, const at::Tensor& out) const;

 private:
  template <class T>
  void add_mlp(const at::Tensor& rows, const at::Tensor& items, T* out) const;

  struct TransposedLayer {
    at::Tensor weight, bias;  // [in, out rounded up]; [out rounded up]
    int64_t in = 0, out = 0;
  };
  std::vector<TransposedLayer> layers_;
  at::Tensor output_;
  double bias_ = 0;
  int64_t width_ = 0;  // of the widest hidden layer
};

}  // namespace convoy
