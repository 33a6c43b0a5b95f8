#include "core/tensors/activation.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "core/base/vectorised.h"

namespace convoy {
namespace {

// out[b, n, h] = relu(shared[b, h] + per_item[b, n, h])
CONVOY_BODY void forward_body(const T* __restrict shared, const T* __restrict per_item, T* __restrict out, int64_t rows,
                              int64_t group, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, shared += width)
    for (int64_t n = 0; n < group; ++n, per_item += width, out += width)
      for (int64_t h = 0; h < width; ++h) {
        const T sum = shared[h] + per_item[h];
        out[h] = sum < 0 ? T(0) : sum;  // NaN remains NaN
      }
}

// to_per_item = gradient where out > 0; to_shared: its sum over the group.
CONVOY_BODY void backward_body(const T* __restrict gradient, const T* __restrict out, T* __restrict to_per_item,
                               T* __restrict to_shared, int64_t rows, int64_t group, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, to_shared += width) {
    std::fill_n(to_shared, width, T(0));
    for (int64_t n = 0; n < group; ++n, gradient += width, out += width, to_per_item += width)
      for (int64_t h = 0; h < width; ++h) {
        const T passed = out[h] <= 0 ? T(0) : gradient[h];
        to_per_item[h] = passed;
        to_shared[h] += passed;
      }
  }
}

#define CONVOY_RELU_LOOPS(T)                                                                                        \
  CONVOY_VECTORISED void forward_loop(const T* shared, const T* per_item, T* out, int64_t rows, int64_t group,      \
                                      int64_t width) {                                                              \
    forward_body(shared, per_item, out, rows, group, width);                                                        \
  }                                                                                                                 \
  CONVOY_VECTORISED void backward_loop(const T* gradient, const T* out, T* to_per_item, T* to_shared, int64_t rows, \
                                       int64_t group, int64_t width) {                                              \
    backward_body(gradient, out, to_per_item, to_shared, rows, group, width);                                       \
  }

CONVOY_RELU_LOOPS(float)
CONVOY_RELU_LOOPS(double)

bool by_loop(const at::Tensor& tensor) {
  return tensor.is_cpu() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

class ReluOfSum : public torch::autograd::Function<ReluOfSum> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& shared,
                            const at::Tensor& per_item) {
    at::Tensor out;
    if (by_loop(per_item)) {
      const at::Tensor plain_shared = shared.contiguous(), plain_per_item = per_item.contiguous();
      out = at::empty(per_item.sizes(), per_item.options());
      const int64_t group = per_item.size(-2), width = per_item.size(-1);
      const int64_t rows = shared.numel() / std::max<int64_t>(1, width);
      AT_DISPATCH_FLOATING_TYPES(per_item.scalar_type(), "relu_of_sum", [&] {
        forward_loop(plain_shared.const_data_ptr<scalar_t>(), plain_per_item.const_data_ptr<scalar_t>(),
                     out.mutable_data_ptr<scalar_t>(), rows, group, width);
      });
    } else {
      out = at::relu(shared.unsqueeze(-2) + per_item);
    }
    context->save_for_backward({out});
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor out = context->get_saved_variables()[0];
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    if (!by_loop(out)) {
      const at::Tensor to_per_item = at::threshold_backward(gradients[0], out, 0);
      return {to_per_item.sum(-2), to_per_item};
    }
    const at::Tensor gradient = gradients[0].contiguous();
    const int64_t group = out.size(-2), width = out.size(-1);
    std::vector<int64_t> shape = out.sizes().vec();
    shape.erase(shape.end() - 2);
    at::Tensor to_per_item = at::empty(out.sizes(), out.options()), to_shared = at::empty(shape, out.options());
    const int64_t rows = to_shared.numel() / std::max<int64_t>(1, width);
    AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "relu_of_sum_backward", [&] {
      backward_loop(gradient.const_data_ptr<scalar_t>(), out.const_data_ptr<scalar_t>(),
                    to_per_item.mutable_data_ptr<scalar_t>(), to_shared.mutable_data_ptr<scalar_t>(), rows, group,
                    width);
    });
    return {to_shared, to_per_item};
  }
};

}  // namespace

at::Tensor relu_of_sum(const at::Tensor& shared, const at::Tensor& per_item) {
  // Other cases, such as members with sizes that only broadcast, use the separate operations.
  const bool plain =
      shared.dim() + 1 == per_item.dim() && shared.scalar_type() == per_item.scalar_type() &&
      shared.sizes().slice(0, size_t(shared.dim()) - 1) == per_item.sizes().slice(0, size_t(per_item.dim()) - 2) &&
      shared.size(-1) == per_item.size(-1);
  if (!plain) return at::relu(shared.unsqueeze(-2) + per_item);
  return ReluOfSum::apply(shared, per_item);
}

}  // namespace convoy
