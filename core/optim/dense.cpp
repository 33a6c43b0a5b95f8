#include "core/optim/dense.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

#include "core/error.h"

namespace convoy {
namespace {

constexpr int64_t grain = 1 << 15;  // elements a thread takes at least
constexpr int64_t piece = 1 << 10;  // elements converted at a time; small enough for the first cache
constexpr size_t most_moments = 2;

bool native(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

// The scalar of one member, from a CPU tensor of one element or one per member.
double scalar(const at::Tensor& tensor, int64_t member) {
  const int64_t index = tensor.numel() == 1 ? 0 : member;
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return tensor.const_data_ptr<double>()[index];
    case at::kFloat:
      return tensor.const_data_ptr<float>()[index];
    case at::kLong:
      return double(tensor.const_data_ptr<int64_t>()[index]);
    case at::kBool:
      return tensor.const_data_ptr<bool>()[index];
    default:
      CONVOY_CHECK(false, "an update's scalar of dtype ", tensor.scalar_type());
  }
}

void check_scalars(const UpdateScalars& scalars, const Slot& slot) {
  for (const at::Tensor* tensor : {&scalars.learning_rate, &scalars.step, &scalars.gradient_scale, &scalars.apply}) {
    CONVOY_CHECK(tensor->defined() && tensor->is_contiguous() && tensor->device() == slot.values.device() &&
                     (tensor->numel() == 1 || tensor->numel() == slot.options.members),
                 "scalars of an update are contiguous, on the slot's device, one or one per member");
  }
}

// Calls run(member, offset of the member, begin, end within it) for parts of all members, in parallel.
template <class Run>
void over_members(int64_t members, int64_t elements, const Run& run) {
  at::parallel_for(0, members * elements, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t member = begin / elements, stop = std::min(end, (member + 1) * elements);
      run(member, begin, stop - begin);
      begin = stop;
    }
  });
}

// Calls run with a null pointer of the C++ type: what a template lambda would take as a parameter.
template <class Run>
void with_type(at::ScalarType dtype, const Run& run) {
  switch (dtype) {
    case at::kFloat:
      return run(static_cast<float*>(nullptr));
    case at::kBFloat16:
      return run(static_cast<at::BFloat16*>(nullptr));
    case at::kHalf:
      return run(static_cast<at::Half*>(nullptr));
    default:
      CONVOY_CHECK(false, "an optimizer's values and gradients are fp64 both, or fp32, bf16 or fp16, not ", dtype);
  }
}

template <class From, class To>
void convert(const From* from, To* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace

int DenseOptimizer::add_slot(at::Tensor values, const SlotOptions& options) {
  at::NoGradGuard no_grad;
  CONVOY_CHECK(values.is_contiguous() && values.is_floating_point() && options.members > 0 &&
                   values.numel() % options.members == 0,
               "a slot is one contiguous buffer of floating-point values of ", options.members, " members");
  Slot slot{values.detach(), options, {}};
  const auto dtype = native(values) ? values.scalar_type() : at::kFloat;
  for (size_t i = 0; i < moment_names_.size(); ++i) {
    slot.moments.push_back(at::zeros(values.sizes(), values.options().dtype(dtype).requires_grad(false)));
  }
  slots_.push_back(std::move(slot));
  return int(slots_.size()) - 1;
}

std::vector<std::pair<std::string, at::Tensor>> DenseOptimizer::moments(int slot) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (size_t i = 0; i < moment_names_.size(); ++i) named.emplace_back(moment_names_[i], slots_.at(slot).moments[i]);
  return named;
}

void DenseOptimizer::set_weight_decays(int index, const std::vector<double>& decays) {
  Slot& slot = slots_.at(index);
  CONVOY_CHECK(int64_t(decays.size()) == slot.options.members, decays.size(), " weight decays for ",
               slot.options.members, " members");
  slot.decays = decays;
  slot.decay_column = at::tensor(decays, at::kDouble).reshape({-1, 1}).to(slot.values.device());
}

void DenseOptimizer::update(int index, const Gradient& gradient, const UpdateScalars& scalars) {
  at::NoGradGuard no_grad;
  Slot& slot = slots_.at(index);
  if (gradient.rows.defined()) {
    throw Error(Failure::config,
                "this optimizer takes whole gradients and was given the rows of a table; choose an optimizer for row "
                "tables, or tables with dense gradients (rows: dense)");
  }
  CONVOY_CHECK(gradient.dense.defined() && gradient.dense.numel() == slot.values.numel() &&
                   gradient.dense.device() == slot.values.device(),
               "the gradient does not fit the slot of ", slot.values.numel(), " values");
  check_scalars(scalars, slot);
  if (slot.values.numel() == 0) return;
  const at::Tensor dense = gradient.dense.detach().contiguous();
  if (slot.values.is_cpu()) {
    update_by_loop(slot, dense, scalars);
  } else if (slot.values.is_cuda() && slot.options.members == 1 && slot.decays.empty() && native(slot.values) &&
             dense.scalar_type() == slot.values.scalar_type()) {
    update_fused(slot, dense, scalars);
  } else {
    update_by_tensors(slot, dense, scalars);
  }
}

void DenseOptimizer::update_by_loop(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) const {
  const int64_t members = slot.options.members, elements = slot.values.numel() / members;
  std::vector<HostScalars> host(members);
  std::vector<SlotOptions> options(members, slot.options);
  std::vector<char> applies(members);
  for (int64_t m = 0; m < members; ++m) {
    host[m] = {scalar(scalars.learning_rate, m) * slot.options.learning_rate_factor, int64_t(scalar(scalars.step, m)),
               scalar(scalars.gradient_scale, m)};
    applies[m] = scalar(scalars.apply, m) != 0;
    if (!slot.decays.empty()) options[m].weight_decay = slot.decays[m];
  }
  const auto moments_at = [&](auto* type, int64_t offset) {
    using T = std::remove_pointer_t<decltype(type)>;
    std::array<T*, most_moments> pointers{};
    for (size_t i = 0; i < slot.moments.size(); ++i) pointers[i] = slot.moments[i].mutable_data_ptr<T>() + offset;
    return pointers;
  };

  if (native(slot.values) && gradient.scalar_type() == slot.values.scalar_type()) {
    AT_DISPATCH_FLOATING_TYPES(slot.values.scalar_type(), "optimizer_loop", [&] {
      scalar_t* values = slot.values.mutable_data_ptr<scalar_t>();
      const scalar_t* gradients = gradient.const_data_ptr<scalar_t>();
      over_members(members, elements, [&](int64_t member, int64_t offset, int64_t n) {
        if (!applies[member]) return;
        const auto moments = moments_at(static_cast<scalar_t*>(nullptr), offset);
        loop(values + offset, gradients + offset, moments.data(), n, options[member], host[member]);
      });
    });
    return;
  }

  // Mixed dtypes: pieces are converted to float, swept, and values converted back.
  with_type(slot.values.scalar_type(), [&](auto* value_type) {
    with_type(gradient.scalar_type(), [&](auto* gradient_type) {
      auto* values = slot.values.mutable_data_ptr<std::remove_pointer_t<decltype(value_type)>>();
      const auto* gradients = gradient.const_data_ptr<std::remove_pointer_t<decltype(gradient_type)>>();
      over_members(members, elements, [&](int64_t member, int64_t offset, int64_t n) {
        if (!applies[member]) return;
        float v[piece], g[piece];
        for (int64_t at = offset; at < offset + n; at += piece) {
          const int64_t count = std::min(piece, offset + n - at);
          convert(values + at, v, count);
          convert(gradients + at, g, count);
          loop(v, g, moments_at(static_cast<float*>(nullptr), at).data(), count, options[member], host[member]);
          convert(v, values + at, count);
        }
      });
    });
  });
}

void DenseOptimizer::update_by_tensors(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) const {
  const int64_t members = slot.options.members;
  const std::array<int64_t, 2> shape{members, slot.values.numel() / members};
  const auto dtype = slot.values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto broadcast = [&](const at::Tensor& tensor, at::ScalarType to) {
    return tensor.to(to).reshape({-1, 1}).expand({members, 1});
  };
  const TensorScalars given{broadcast(scalars.learning_rate, dtype) * slot.options.learning_rate_factor,
                            broadcast(scalars.step, at::kDouble), broadcast(scalars.gradient_scale, dtype),
                            slot.decay_column.defined() ? slot.decay_column.to(dtype)
                                                        : at::full({members, 1}, slot.options.weight_decay,
                                                                   slot.values.options().dtype(dtype))};
  const at::Tensor applies = broadcast(scalars.apply, at::kBool);
  at::Tensor values = slot.values.view(shape).to(dtype, /*non_blocking=*/false, /*copy=*/true);
  std::vector<at::Tensor> moments;
  for (const at::Tensor& moment : slot.moments) moments.push_back(moment.view(shape).clone());
  tensors(values, gradient.view(shape).to(dtype), moments, slot.options, given);

  slot.values.view(shape).copy_(at::where(applies, values, slot.values.view(shape).to(dtype)));
  for (size_t i = 0; i < moments.size(); ++i) {
    at::Tensor old = slot.moments[i].view(shape);
    old.copy_(at::where(applies, moments[i], old));
  }
}

void DenseOptimizer::update_fused(Slot& slot, const at::Tensor& gradient, const UpdateScalars& scalars) const {
  // LibTorch's kernels take float scalars of no dimension, divide gradients by a scale (and write them back, so they
  // are given a gradient that may be spoiled: it is this step's), and do nothing where found_inf is 1.
  const auto single = [](const at::Tensor& tensor) { return tensor.to(at::kFloat).reshape({}); };
  fused(slot, gradient, single(scalars.learning_rate) * slot.options.learning_rate_factor, single(scalars.step),
        single(scalars.gradient_scale).reciprocal(), single(scalars.apply.logical_not()));
}

}  // namespace convoy
