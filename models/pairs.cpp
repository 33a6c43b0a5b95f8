#include "models/pairs.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "core/base/vectorised.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

struct PairSizes {
  int64_t rows, group, factors, features;  // features: without the factors
  int64_t row_numbers, item_numbers;
  int64_t product_stride = 0;  // distance between rows of the product's gradient
};

CONVOY_BODY void forward_body(const T* __restrict user, const T* __restrict item, const T* __restrict of_row,
                              const T* __restrict of_item, T* __restrict product, T* __restrict row, T* __restrict own,
                              const PairSizes& s) {
  const int64_t width = s.factors + s.features;
  for (int64_t b = 0; b < s.rows; ++b, user += width) {
    row = std::copy_n(user + s.factors, s.features, row);
    if (of_row != nullptr) {
      row = std::copy_n(of_row, s.row_numbers, row);
      of_row += s.row_numbers;
    }
    for (int64_t n = 0; n < s.group; ++n, item += width, product += s.factors) {
      for (int64_t f = 0; f < s.factors; ++f) product[f] = user[f] * item[f];
      own = std::copy_n(item + s.factors, s.features, own);
      if (of_item == nullptr) continue;
      own = std::copy_n(of_item, s.item_numbers, own);
      of_item += s.item_numbers;
    }
  }
}

// Null gradients are zero.
CONVOY_BODY void backward_body(const T* __restrict user, const T* __restrict item, const T* __restrict product,
                               const T* __restrict row, const T* __restrict own, T* __restrict to_user,
                               T* __restrict to_item, const PairSizes& s) {
  const int64_t width = s.factors + s.features;
  for (int64_t b = 0; b < s.rows; ++b, user += width, to_user += width) {
    std::fill_n(to_user, s.factors, T(0));
    if (row != nullptr) {
      std::copy_n(row, s.features, to_user + s.factors);
      row += s.features + s.row_numbers;
    } else {
      std::fill_n(to_user + s.factors, s.features, T(0));
    }
    for (int64_t n = 0; n < s.group; ++n, item += width, to_item += width) {
      if (product != nullptr) {
        for (int64_t f = 0; f < s.factors; ++f) {
          to_item[f] = product[f] * user[f];
          to_user[f] += product[f] * item[f];
        }
        product += s.product_stride;
      } else {
        std::fill_n(to_item, s.factors, T(0));
      }
      if (own != nullptr) {
        std::copy_n(own, s.features, to_item + s.factors);
        own += s.features + s.item_numbers;
      } else {
        std::fill_n(to_item + s.factors, s.features, T(0));
      }
    }
  }
}

#define CONVOY_PAIR_LOOPS(T)                                                                                       \
  CONVOY_VECTORISED void forward_loop(const T* user, const T* item, const T* of_row, const T* of_item, T* product, \
                                      T* row, T* own, const PairSizes& sizes) {                                    \
    forward_body(user, item, of_row, of_item, product, row, own, sizes);                                           \
  }                                                                                                                \
  CONVOY_VECTORISED void backward_loop(const T* user, const T* item, const T* product, const T* row, const T* own, \
                                       T* to_user, T* to_item, const PairSizes& sizes) {                           \
    backward_body(user, item, product, row, own, to_user, to_item, sizes);                                         \
  }

CONVOY_PAIR_LOOPS(float)
CONVOY_PAIR_LOOPS(double)

int64_t width_of(const at::Tensor& numbers) { return numbers.defined() ? numbers.size(-1) : 0; }

PairSizes pair_sizes(const at::Tensor& user, const at::Tensor& item, int64_t row_numbers, int64_t item_numbers,
                     int64_t factors) {
  const int64_t width = user.size(-1);
  return {
      user.numel() / std::max<int64_t>(1, width), item.size(-2), factors, width - factors, row_numbers, item_numbers};
}

at::Tensor shaped(const at::Tensor& like, int64_t width) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = width;
  return at::empty(shape, like.options().requires_grad(false));
}

class PairsFunction : public torch::autograd::Function<PairsFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* saved, const at::Tensor& user,
                                                const at::Tensor& item, const std::optional<at::Tensor>& of_row,
                                                const std::optional<at::Tensor>& of_item, int64_t factors) {
    const auto plain = [](const std::optional<at::Tensor>& data) { return data ? data->contiguous() : at::Tensor(); };
    const at::Tensor plain_user = user.contiguous(), plain_item = item.contiguous();
    const at::Tensor row_numbers = plain(of_row), item_numbers = plain(of_item);
    const PairSizes sizes = pair_sizes(user, item, width_of(row_numbers), width_of(item_numbers), factors);
    at::Tensor product = shaped(item, factors), row = shaped(user, sizes.features + sizes.row_numbers),
               own = shaped(item, sizes.features + sizes.item_numbers);
    AT_DISPATCH_FLOATING_TYPES(user.scalar_type(), "pairs", [&] {
      const auto data = [](const at::Tensor& numbers) {
        return numbers.defined() ? numbers.const_data_ptr<scalar_t>() : nullptr;
      };
      forward_loop(plain_user.const_data_ptr<scalar_t>(), plain_item.const_data_ptr<scalar_t>(), data(row_numbers),
                   data(item_numbers), product.mutable_data_ptr<scalar_t>(), row.mutable_data_ptr<scalar_t>(),
                   own.mutable_data_ptr<scalar_t>(), sizes);
    });
    saved->set_materialize_grads(false);
    saved->save_for_backward({plain_user, plain_item});
    saved->saved_data["row_numbers"] = sizes.row_numbers;
    saved->saved_data["item_numbers"] = sizes.item_numbers;
    saved->saved_data["factors"] = factors;
    return {product, row, own};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* saved,
                                                 torch::autograd::variable_list gradients) {
    const auto kept = saved->get_saved_variables();
    const at::Tensor &user = kept[0], &item = kept[1];
    const auto saved_size = [&](const char* name) { return saved->saved_data[name].toInt(); };
    PairSizes sizes =
        pair_sizes(user, item, saved_size("row_numbers"), saved_size("item_numbers"), saved_size("factors"));
    // The gradient of the product may be a range of columns of a wider tensor, for example after cat().
    const int64_t stride = gradients[0].defined() ? row_stride(gradients[0]) : 0;
    sizes.product_stride = stride > 0 ? stride : sizes.factors;
    for (size_t i = stride > 0 ? 1 : 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) gradients[i] = gradients[i].contiguous();
    at::Tensor to_user = at::empty(user.sizes(), user.options()), to_item = at::empty(item.sizes(), item.options());
    AT_DISPATCH_FLOATING_TYPES(user.scalar_type(), "pairs_backward", [&] {
      const auto data = [&](size_t index) {
        return gradients[index].defined() ? gradients[index].const_data_ptr<scalar_t>() : nullptr;
      };
      backward_loop(user.const_data_ptr<scalar_t>(), item.const_data_ptr<scalar_t>(), data(0), data(1), data(2),
                    to_user.mutable_data_ptr<scalar_t>(), to_item.mutable_data_ptr<scalar_t>(), sizes);
    });
    return {to_user, to_item, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// True if the loops above support the tensors. LibTorch handles broadcasting and half precision.
bool can_use_loops(const at::Tensor& user, const at::Tensor& item, const at::Tensor& row_numbers,
                   const at::Tensor& item_numbers) {
  const auto dtype = user.scalar_type();
  const auto rows = [](const at::Tensor& tensor, int64_t trailing) {
    return tensor.sizes().slice(0, size_t(tensor.dim() - trailing));
  };
  const auto data_for = [&](const at::Tensor& numbers, const at::Tensor& embedding) {
    return !numbers.defined() || (numbers.scalar_type() == dtype && !numbers.requires_grad() &&
                                  numbers.dim() == embedding.dim() && rows(numbers, 1) == rows(embedding, 1));
  };
  return user.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble) && item.scalar_type() == dtype &&
         user.dim() + 1 == item.dim() && rows(user, 1) == rows(item, 2) && user.size(-1) == item.size(-1) &&
         data_for(row_numbers, user) && data_for(item_numbers, item);
}

at::Tensor joined(const at::Tensor& embedding, const at::Tensor& numbers) {
  return numbers.defined() ? at::cat({embedding, numbers}, -1) : embedding;
}

std::optional<at::Tensor> if_defined(const at::Tensor& numbers) {
  return numbers.defined() ? std::optional<at::Tensor>(numbers) : std::nullopt;
}

}  // namespace

Pairs pairs_of(const at::Tensor& user, const at::Tensor& item, const at::Tensor& row_numbers,
               const at::Tensor& item_numbers, int64_t factors) {
  const int64_t features = user.size(-1) - factors;
  Pairs pairs;
  if (can_use_loops(user, item, row_numbers, item_numbers)) {
    auto made = PairsFunction::apply(user, item, if_defined(row_numbers), if_defined(item_numbers), factors);
    pairs = {made[0], made[1], made[2]};
  } else {
    const auto users = user.split_with_sizes({factors, features}, -1);
    const auto items = item.split_with_sizes({factors, features}, -1);
    pairs = {users[0].unsqueeze(-2) * items[0], joined(users[1], row_numbers), joined(items[1], item_numbers)};
  }
  if (factors == 0) pairs.product = at::Tensor();
  if (features == 0) pairs.row = pairs.item = at::Tensor();
  return pairs;
}

}  // namespace convoy
