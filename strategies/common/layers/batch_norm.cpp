#include "strategies/common/layers/batch_norm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <numeric>

#include "core/base/error.h"

namespace convoy {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims(size_t(input.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + 1);
  return dims;
}

// Reshapes [C] to [1, C, 1, …].
at::Tensor per_channel(const at::Tensor& statistics, const at::Tensor& like) {
  std::vector<int64_t> shape(size_t(like.dim()), 1);
  shape[1] = statistics.numel();
  return statistics.to(like.scalar_type()).view(shape);
}

struct ChannelStatistics {
  at::Tensor count;     // double, []
  at::Tensor mean;      // double, [C]
  at::Tensor variance;  // double, [C], biased
};

ChannelStatistics statistics_of_all(const at::Tensor& input, Communicator& group, const std::string& name) {
  const int64_t channels = input.size(1);
  const int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const std::vector<int64_t> dims = all_but_channels(input);
  const at::Tensor wide = input.to(at::kDouble);
  at::Tensor mine = at::zeros({2 * channels + 1}, wide.options());
  if (count > 0) {
    const at::Tensor mean = wide.mean(dims);
    mine[0].fill_(double(count));
    mine.narrow(0, 1, channels).copy_(mean);
    mine.narrow(0, 1 + channels, channels).copy_((wide - per_channel(mean, wide)).square().sum(dims));
  }
  at::Tensor all = at::empty({group.size(), 2 * channels + 1}, mine.options());
  group.all_gather(all, mine, {"batch norm " + name, {}})->wait();
  const at::Tensor counts = all.narrow(1, 0, 1);
  const at::Tensor means = all.narrow(1, 1, channels);
  ChannelStatistics statistics;
  statistics.count = counts.sum();
  const at::Tensor divisor = statistics.count.clamp_min(1);
  statistics.mean = (counts * means).sum(0) / divisor;
  const at::Tensor between = (counts * (means - statistics.mean).square()).sum(0);
  statistics.variance = (all.narrow(1, 1 + channels, channels).sum(0) + between) / divisor;
  return statistics;
}

struct BatchNorm : torch::autograd::Function<BatchNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, at::Tensor running_mean, at::Tensor running_var, double momentum,
                            double eps, CommunicatorPtr group, std::string name) {
    const ChannelStatistics statistics = statistics_of_all(input, *group, name);
    // One value has no variance. The host does not know the count, so both results are computed and one is selected.
    const at::Tensor enough = statistics.count > 1;
    const at::Tensor mean = at::where(enough, statistics.mean, running_mean.to(at::kDouble));
    const at::Tensor variance = at::where(enough, statistics.variance, running_var.to(at::kDouble));
    const at::Tensor unbiased = variance * (statistics.count / (statistics.count - 1).clamp_min(1));
    const at::Tensor step = enough.to(running_mean.scalar_type()) * momentum;
    running_mean.add_(step * (mean.to(running_mean.scalar_type()) - running_mean));
    running_var.add_(step * (unbiased.to(running_var.scalar_type()) - running_var));
    const at::Tensor inverse = (variance + eps).rsqrt();
    context->save_for_backward({input, weight, mean, inverse, at::where(enough, statistics.count, 0.0)});
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(group)));
    context->saved_data["name"] = std::move(name);
    return (input - per_channel(mean, input)) * per_channel(inverse * weight.to(at::kDouble), input) +
           per_channel(bias, input);
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3], &count = saved[4];
    const at::Tensor& output = gradients[0];
    const std::vector<int64_t> dims = all_but_channels(input);
    const int64_t channels = input.size(1);
    const at::Tensor normal = (input - per_channel(mean, input)) * per_channel(inverse, input);
    at::Tensor sums = at::cat({output.sum(dims), (output * normal).sum(dims)}).to(at::kDouble);
    const at::Tensor mine = sums.clone();
    auto held = context->saved_data["group"].toCapsule();
    auto& group = *static_cast<Held*>(held.get())->group;
    group.all_reduce(sums, ReduceOp::sum, {"batch norm " + context->saved_data["name"].toStringRef(), {}})->wait();
    // If the running buffers were used, the statistics do not depend on the input.
    sums = at::where(count > 0, sums / count.clamp_min(1), 0.0);
    const at::Tensor inner = output - per_channel(sums.narrow(0, 0, channels), input) -
                             normal * per_channel(sums.narrow(0, channels, channels), input);
    const at::Tensor to_input = inner * per_channel(inverse * weight.to(at::kDouble), input);
    return {to_input,
            mine.narrow(0, channels, channels).to(weight.scalar_type()),
            mine.narrow(0, 0, channels).to(weight.scalar_type()),
            {},
            {},
            {},
            {},
            {},
            {}};
  }

 private:
  // Wraps a communicator so that a graph can hold it.
  struct Held : torch::CustomClassHolder {
    explicit Held(CommunicatorPtr held) : group(std::move(held)) {}
    CommunicatorPtr group;
  };
};

}  // namespace

BatchNormFunction synchronised_batch_norm(const CommunicatorPtr& group) {
  return
      [group](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
              const at::Tensor& running_var, double momentum, double eps, const std::string& name) {
        return BatchNorm::apply(input, weight, bias, running_mean, running_var, momentum, eps, group, name);
      };
}

}  // namespace convoy
