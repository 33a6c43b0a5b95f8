#include "core/optim/dense.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <algorithm>
#include <array>
#include <cmath>

#include "core/optim/rows/row_loops.h"
#include "core/tensors/tensor_memory.h"

namespace convoy {
namespace {

constexpr int64_t dense_grain = 1 << 15;  // least number of elements per thread
constexpr int64_t chunk = 1 << 10;        // elements converted at a time; small enough for the first-level cache
constexpr size_t most_moments = 2;

bool native(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

void check_scalars(const UpdateScalars& scalars, const Slot& slot) {
  for (const at::Tensor* tensor : {&scalars.learning_rate, &scalars.step, &scalars.gradient_scale, &scalars.apply}) {
    CONVOY_CHECK(tensor->defined() && tensor->is_contiguous() && tensor->device() == slot.values.device() &&
                     (tensor->numel() == 1 || tensor->numel() == slot.options.members),
                 "scalars of an update are contiguous, on the slot's device, one or one per member");
  }
}

// Calls run(member, offset of the member, begin, end within it) for ranges of all members, in parallel.
template <class Run>
void over_members(int64_t members, int64_t elements, const Run& run) {
  at::parallel_for(0, members * elements, dense_grain, [&](int64_t begin, int64_t end) {
    const DenormalsAreZero denormals;
    while (begin < end) {
      const int64_t member = begin / elements, stop = std::min(end, (member + 1) * elements);
      run(member, begin, stop - begin);
      begin = stop;
    }
  });
}

// Calls run with a null pointer of the C++ type, in place of a template parameter of the lambda.
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

// --- Adagrad (Duchi, Hazan, Singer, JMLR 2011), as in torch::optim without a decay of the learning rate ---

class Adagrad : public DenseOptimizer {
 public:
  explicit Adagrad(const OptimizerOptions& options) : DenseOptimizer({"sum"}), eps_(options.eps) {}

 protected:
  void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adagrad_loop(values, gradient, moments[0], n, step(options, scalars));
  }
  void loop(double* values, const double* gradient, double* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adagrad_loop(values, gradient, moments[0], n, step(options, scalars));
  }

  void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments, const SlotOptions&,
               const TensorScalars& scalars) const override {
    const at::Tensor g = gradient * scalars.gradient_scale + values * scalars.weight_decay;
    moments[0].addcmul_(g, g);
    values.sub_(scalars.learning_rate * g / moments[0].sqrt().add_(eps_));
  }

  // LibTorch's kernel has no flag to do nothing. Zero gradients have that effect: they leave the sum and the value
  // unchanged.
  void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor&,
             const at::Tensor& divisor, const at::Tensor& skip) const override {
    const at::Tensor applies = skip == 0;
    at::Tensor g = gradient / divisor;
    if (slot.options.weight_decay != 0) g = g.add(slot.values, slot.options.weight_decay);
    g = at::where(applies, g, at::zeros_like(g));
    slot.moments[0].addcmul_(g, g);
    slot.values.sub_(learning_rate * g / slot.moments[0].sqrt().add_(eps_));
  }

 private:
  AdagradStep step(const SlotOptions& options, const HostScalars& scalars) const {
    return {scalars.learning_rate, eps_, options.weight_decay, scalars.gradient_scale};
  }

  double eps_ = 0;
};

// --- Adam (Kingma, Ba, arXiv:1412.6980) and AdamW (Loshchilov, Hutter, arXiv:1711.05101), as in torch::optim ---

class Adam : public DenseOptimizer {
 public:
  explicit Adam(OptimizerOptions options) : DenseOptimizer({"exp_avg", "exp_avg_sq"}), options_(std::move(options)) {}

 protected:
  void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adam_loop(values, gradient, moments[0], moments[1], n, step(options, scalars));
  }
  void loop(double* values, const double* gradient, double* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    adam_loop(values, gradient, moments[0], moments[1], n, step(options, scalars));
  }

  void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments, const SlotOptions&,
               const TensorScalars& scalars) const override {
    at::Tensor g = gradient * scalars.gradient_scale;
    if (!options_.decoupled) g.addcmul_(values, scalars.weight_decay);
    moments[0].add_(g - moments[0], 1 - options_.beta1);
    moments[1].mul_(options_.beta2).addcmul_(g, g, 1 - options_.beta2);
    const auto dtype = values.scalar_type();
    const at::Tensor correction1 = (1 - at::pow(options_.beta1, scalars.step)).to(dtype);
    const at::Tensor root = at::rsqrt(1 - at::pow(options_.beta2, scalars.step)).to(dtype);
    if (options_.decoupled) values.mul_(1 - scalars.learning_rate * scalars.weight_decay);
    values.sub_(scalars.learning_rate / correction1 * moments[0] / (moments[1].sqrt() * root + options_.eps));
  }

  void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor& step,
             const at::Tensor& divisor, const at::Tensor& skip) const override {
    at::Tensor values = slot.values, spoiled = gradient, mean = slot.moments[0], square = slot.moments[1], steps = step;
    const double decay = slot.options.weight_decay;
    if (options_.decoupled) {
      at::_fused_adamw_({values}, {spoiled}, {mean}, {square}, {}, {steps}, learning_rate, options_.beta1,
                        options_.beta2, decay, options_.eps,
                        /*amsgrad=*/false, /*maximize=*/false, divisor, skip);
    } else {
      at::_fused_adam_({values}, {spoiled}, {mean}, {square}, {}, {steps}, learning_rate, options_.beta1,
                       options_.beta2, decay, options_.eps,
                       /*amsgrad=*/false, /*maximize=*/false, divisor, skip);
    }
  }

 private:
  AdamStep step(const SlotOptions& options, const HostScalars& scalars) const {
    return adam_step(options_, options, scalars);
  }

  OptimizerOptions options_;
};

// --- SGD with momentum and Nesterov momentum (Sutskever et al., ICML 2013), as in torch::optim ---

class Sgd : public DenseOptimizer {
 public:
  explicit Sgd(const OptimizerOptions& options)
      : DenseOptimizer(options.momentum == 0 ? std::vector<std::string>() : std::vector<std::string>{"momentum"}),
        momentum_(options.momentum),
        nesterov_(options.nesterov) {}

 protected:
  void loop(float* values, const float* gradient, float* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    sgd_loop(values, gradient, moments[0], n, step(options, scalars));
  }
  void loop(double* values, const double* gradient, double* const* moments, int64_t n, const SlotOptions& options,
            const HostScalars& scalars) const override {
    sgd_loop(values, gradient, moments[0], n, step(options, scalars));
  }

  void tensors(at::Tensor& values, const at::Tensor& gradient, std::vector<at::Tensor>& moments, const SlotOptions&,
               const TensorScalars& scalars) const override {
    at::Tensor direction = gradient * scalars.gradient_scale + values * scalars.weight_decay;
    if (momentum_ != 0) {
      moments[0].mul_(momentum_).add_(direction);
      direction = nesterov_ ? direction.add(moments[0], momentum_) : moments[0];
    }
    values.sub_(scalars.learning_rate * direction);
  }

  void fused(Slot& slot, const at::Tensor& gradient, const at::Tensor& learning_rate, const at::Tensor&,
             const at::Tensor& divisor, const at::Tensor& skip) const override {
    at::Tensor values = slot.values, spoiled = gradient;
    // A velocity of zeros needs no special first step.
    at::_fused_sgd_({values}, {spoiled}, slot.moments, slot.options.weight_decay, momentum_, learning_rate,
                    /*dampening=*/0, nesterov_, /*maximize=*/false, /*is_first_step=*/false, divisor, skip);
  }

 private:
  SgdStep step(const SlotOptions& options, const HostScalars& scalars) const {
    return {scalars.learning_rate, momentum_, nesterov_, options.weight_decay, scalars.gradient_scale};
  }

  double momentum_ = 0;
  bool nesterov_ = false;
};

// The scalar of one member: of one element, or of one per member.
double scalar(const at::Tensor& tensor, int64_t member) {
  const at::Tensor here = tensor.is_cpu() ? tensor : tensor.cpu();
  return number_at(here, here.numel() == 1 ? 0 : member);
}

}  // namespace

std::optional<HostScalars> host_scalars(const UpdateScalars& scalars, const SlotOptions& options, int64_t member) {
  if (scalar(scalars.apply, member) == 0) return std::nullopt;
  return HostScalars{scalar(scalars.learning_rate, member) * options.learning_rate_factor,
                     int64_t(scalar(scalars.step, member)), scalar(scalars.gradient_scale, member)};
}

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

NamedTensors DenseOptimizer::moments(int slot) {
  NamedTensors named;
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
                "this optimizer takes dense gradients and received rows of a table; choose another optimizer, or "
                "dense embeddings (model.rows: false)");
  }
  CONVOY_CHECK(gradient.dense.defined() && gradient.dense.numel() == slot.values.numel() &&
                   gradient.dense.device() == slot.values.device(),
               "the gradient does not fit the slot of ", slot.values.numel(), " values");
  check_scalars(scalars, slot);
  if (slot.values.numel() == 0) return;
  const at::Tensor dense = gradient.dense.contiguous();
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
  std::vector<std::optional<HostScalars>> host(members);
  std::vector<SlotOptions> options(members, slot.options);
  for (int64_t m = 0; m < members; ++m) {
    host[m] = host_scalars(scalars, slot.options, m);
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
        if (!host[member]) return;
        const auto moments = moments_at(static_cast<scalar_t*>(nullptr), offset);
        loop(values + offset, gradients + offset, moments.data(), n, options[member], *host[member]);
      });
    });
    return;
  }

  // Mixed dtypes: converts chunks to float, updates them, and converts the values back.
  with_type(slot.values.scalar_type(), [&](auto* value_type) {
    with_type(gradient.scalar_type(), [&](auto* gradient_type) {
      auto* values = slot.values.mutable_data_ptr<std::remove_pointer_t<decltype(value_type)>>();
      const auto* gradients = gradient.const_data_ptr<std::remove_pointer_t<decltype(gradient_type)>>();
      over_members(members, elements, [&](int64_t member, int64_t offset, int64_t n) {
        if (!host[member]) return;
        float v[chunk], g[chunk];
        for (int64_t at = offset; at < offset + n; at += chunk) {
          const int64_t count = std::min(chunk, offset + n - at);
          convert(values + at, v, count);
          convert(gradients + at, g, count);
          loop(v, g, moments_at(static_cast<float*>(nullptr), at).data(), count, options[member], *host[member]);
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
  // LibTorch's kernels take float scalars without dimensions and do nothing if found_inf is 1. They divide gradients by
  // a scale in place. The gradient of this step may be overwritten.
  const auto single = [](const at::Tensor& tensor) { return tensor.to(at::kFloat).reshape({}); };
  fused(slot, gradient, single(scalars.learning_rate) * slot.options.learning_rate_factor, single(scalars.step),
        single(scalars.gradient_scale).reciprocal(), single(scalars.apply.logical_not()));
}

AdamStep adam_step(const OptimizerOptions& settings, const SlotOptions& options, const HostScalars& scalars) {
  AdamStep step;
  step.learning_rate = scalars.learning_rate;
  step.beta1 = settings.beta1;
  step.beta2 = settings.beta2;
  step.eps = settings.eps;
  step.correction1 = 1 - std::pow(settings.beta1, double(scalars.step));
  step.correction2 = 1 - std::pow(settings.beta2, double(scalars.step));
  step.l2 = settings.decoupled ? 0 : options.weight_decay;
  step.decay = settings.decoupled ? 1 - scalars.learning_rate * options.weight_decay : 1;
  step.gradient_scale = scalars.gradient_scale;
  return step;
}

std::unique_ptr<Optimizer> make_optimizer(const Component& optimizer) {
  for (const Entry& entry : optimizer_catalogue())
    if (entry.name == optimizer.name) entry.check(optimizer.options);
  const OptimizerOptions options = optimizer_options(optimizer);
  if (optimizer.name == "sgd") return std::make_unique<Sgd>(options);
  if (optimizer.name == "adagrad") return std::make_unique<Adagrad>(options);
  CONVOY_CHECK(optimizer.name == "adam" || optimizer.name == "adamw", "optimizer '", optimizer.name,
               "' is in the catalogue and has no implementation");
  return std::make_unique<Adam>(options);
}

}  // namespace convoy
