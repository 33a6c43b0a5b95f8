#include "strategies/parts/shape_functions.h"

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

namespace convoy {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Mask = std::array<bool, 3>;
using MaybeTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Two = std::tuple<Tensor, Tensor>;

Tensor like(const Tensor& tensor) { return at::empty_like(tensor); }
Tensor plain_like(const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options()); }
Tensor of_shape(IntArrayRef sizes, const Tensor& type) { return at::empty(sizes, type.options()); }
Tensor like_if(bool wanted, const Tensor& tensor) { return wanted && tensor.defined() ? like(tensor) : Tensor(); }

// The data type of a normalisation's statistics: the weight's where a narrower input has a wide one.
const Tensor& statistics_type(const Tensor& input, const MaybeTensor& weight) {
  return weight && weight->defined() ? *weight : input;
}

// ---- normalisations -------------------------------------------------------------------------------------------------

Three layer_norm(const Tensor& input, IntArrayRef shape, const MaybeTensor& weight, const MaybeTensor&, double) {
  std::vector<int64_t> statistics = input.sizes().vec();
  for (size_t i = statistics.size() - shape.size(); i < statistics.size(); ++i) statistics[i] = 1;
  const Tensor& type = statistics_type(input, weight);
  return {plain_like(input), of_shape(statistics, type), of_shape(statistics, type)};
}

Three layer_norm_backward(const Tensor&, const Tensor& input, IntArrayRef, const Tensor&, const Tensor&,
                          const MaybeTensor& weight, const MaybeTensor& bias, Mask wanted) {
  return {wanted[0] ? plain_like(input) : Tensor(), like_if(wanted[1], weight.value_or(Tensor())),
          like_if(wanted[2], bias.value_or(Tensor()))};
}

Three group_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor&, int64_t rows, int64_t, int64_t,
                 int64_t groups, double) {
  const Tensor& type = statistics_type(input, weight);
  return {like(input), of_shape({rows, groups}, type), of_shape({rows, groups}, type)};
}

Three group_norm_backward(const Tensor&, const Tensor& input, const Tensor&, const Tensor&, const MaybeTensor& weight,
                          int64_t, int64_t channels, int64_t, int64_t, Mask wanted) {
  const Tensor& type = statistics_type(input, weight);
  return {like_if(wanted[0], input), wanted[1] ? of_shape({channels}, type) : Tensor(),
          wanted[2] ? of_shape({channels}, type) : Tensor()};
}

Three batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor&, const MaybeTensor&,
                 const MaybeTensor&, bool training, double, double) {
  const Tensor& type = statistics_type(input, weight);
  const int64_t channels = training ? input.size(1) : 0;
  return {like(input), of_shape({channels}, type), of_shape({channels}, type)};
}

Three batch_norm_backward(const Tensor&, const Tensor& input, const MaybeTensor& weight, const MaybeTensor&,
                          const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, bool, double, Mask wanted) {
  const Tensor& type = statistics_type(input, weight);
  const auto channels = [&](bool one) { return one ? of_shape({input.size(1)}, type) : Tensor(); };
  return {like_if(wanted[0], input), channels(wanted[1]), channels(wanted[2])};
}

// ---- convolution ----------------------------------------------------------------------------------------------------

Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor&, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  const auto at = [](IntArrayRef list, int64_t i) { return list.size() == 1 ? list[0] : list[static_cast<size_t>(i)]; };
  const int64_t dimensions = weight.dim() - 2;
  std::vector<int64_t> sizes = input.sizes().vec();
  const size_t channels = sizes.size() - static_cast<size_t>(dimensions) - 1;  // a batch may be missing
  sizes[channels] = transposed ? weight.size(1) * groups : weight.size(0);
  for (int64_t i = 0; i < dimensions; ++i) {
    int64_t& size = sizes[channels + 1 + static_cast<size_t>(i)];
    const int64_t kernel = at(dilation, i) * (weight.size(2 + i) - 1);
    size = transposed ? (size - 1) * at(stride, i) - 2 * at(padding, i) + kernel + at(output_padding, i) + 1
                      : (size + 2 * at(padding, i) - kernel - 1) / at(stride, i) + 1;
  }
  return of_shape(sizes, input);
}

Three convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                           at::OptionalIntArrayRef bias, IntArrayRef, IntArrayRef, IntArrayRef, bool, IntArrayRef,
                           int64_t, Mask wanted) {
  const int64_t channels = gradient.size(-1 - (weight.dim() - 2));
  return {like_if(wanted[0], input), like_if(wanted[1], weight),
          wanted[2] ? of_shape(bias ? *bias : IntArrayRef{channels}, weight) : Tensor()};
}

Tensor adaptive_pool(const Tensor& input, IntArrayRef size) {
  std::vector<int64_t> sizes = input.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 2);
  return of_shape(sizes, input);
}

Tensor adaptive_pool_backward(const Tensor&, const Tensor& input) { return like(input); }

// ---- selection ------------------------------------------------------------------------------------------------------

Tensor embedding(const Tensor& weight, const Tensor& ids, int64_t, bool, bool) {
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  return of_shape(sizes, weight);
}

Tensor embedding_backward(const Tensor& gradient, const Tensor&, int64_t rows, int64_t, bool) {
  return of_shape({rows, gradient.size(-1)}, gradient);
}

Tensor index_select(const Tensor& input, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = input.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, input.dim()))] = index.numel();
  return of_shape(sizes, input);
}

Tensor where(const Tensor& condition, const Tensor& one, const Tensor& other) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(one.sizes(), other.sizes()));
  return at::empty(sizes, one.options().dtype(at::result_type(one, other)));
}

// ---- attention ------------------------------------------------------------------------------------------------------

// [N, heads, T, D] as views of [N, T, heads, D], as the kernel makes them.
Tensor attended_like(const Tensor& tensor) {
  return of_shape({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor).transpose(1, 2);
}

Two attention(const Tensor& query, const Tensor&, const Tensor& value, double, bool, const MaybeTensor&,
              std::optional<double>) {
  const Tensor output = of_shape({query.size(0), query.size(2), query.size(1), value.size(3)}, query).transpose(1, 2);
  const Tensor sums = at::empty({query.size(0), query.size(2), query.size(1)},
                                query.options().dtype(at::toOpMathType(query.scalar_type())));
  return {output, sums.transpose(1, 2)};
}

Three attention_backward(const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&,
                         const Tensor&, double, bool, const MaybeTensor&, std::optional<double>) {
  return {attended_like(query), attended_like(key), attended_like(value)};
}

// ---- others ---------------------------------------------------------------------------------------------------------

Two log_sigmoid(const Tensor& input) { return {like(input), like(input)}; }
Tensor log_sigmoid_backward(const Tensor& gradient, const Tensor&, const Tensor&) { return like(gradient); }
Tensor turned(const Tensor& input, IntArrayRef) { return like(input); }
Tensor rolled(const Tensor& input, IntArrayRef, IntArrayRef) { return like(input); }

}  // namespace

void add_shape_functions(torch::Library& aten) {
  aten.impl("native_layer_norm", TORCH_FN(layer_norm));
  aten.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  aten.impl("native_group_norm", TORCH_FN(group_norm));
  aten.impl("native_group_norm_backward", TORCH_FN(group_norm_backward));
  aten.impl("native_batch_norm", TORCH_FN(batch_norm));
  aten.impl("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
  aten.impl("convolution", TORCH_FN(convolution));
  aten.impl("convolution_backward", TORCH_FN(convolution_backward));
  aten.impl("_adaptive_avg_pool2d", TORCH_FN(adaptive_pool));
  aten.impl("_adaptive_avg_pool2d_backward", TORCH_FN(adaptive_pool_backward));
  aten.impl("embedding", TORCH_FN(embedding));
  aten.impl("embedding_dense_backward", TORCH_FN(embedding_backward));
  aten.impl("index_select", TORCH_FN(index_select));
  aten.impl("where.self", TORCH_FN(where));
  aten.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(attention));
  aten.impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_FN(attention_backward));
  aten.impl("log_sigmoid_forward", TORCH_FN(log_sigmoid));
  aten.impl("log_sigmoid_backward", TORCH_FN(log_sigmoid_backward));
  aten.impl("flip", TORCH_FN(turned));
  aten.impl("roll", TORCH_FN(rolled));
}

}  // namespace convoy
