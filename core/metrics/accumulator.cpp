#include "core/metrics/accumulator.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "core/error.h"

namespace convoy {
namespace {

at::Tensor flat_double(const at::Tensor& value) { return value.detach().to(at::kDouble).reshape({-1}); }

// Adds without a dispatch for what most steps have, a number or few of them in double on the CPU.
void add_to(at::Tensor& sum, const at::Tensor& value) {
  const bool plain = value.is_cpu() && value.scalar_type() == at::kDouble && value.is_contiguous() && sum.is_cpu() &&
                     value.numel() == sum.numel();
  if (!plain) {
    sum.add_(flat_double(value));
    return;
  }
  double* to = sum.mutable_data_ptr<double>();
  const double* from = value.const_data_ptr<double>();
  for (int64_t i = 0; i < sum.numel(); ++i) to[i] += from[i];
}

}  // namespace

void MetricAccumulator::add(const std::vector<Metric>& metrics) {
  at::NoGradGuard no_grad;
  if (names_.empty()) {
    for (const Metric& metric : metrics) {
      if (std::find(names_.begin(), names_.end(), metric.name) != names_.end())
        throw Error(Failure::training,
                    convoy::str("metric '", metric.name, "' occurs twice; give the model's metrics other names"));
      names_.push_back(metric.name);
      lower_is_better_.push_back(metric.lower_is_better);
      // A copy of its own: the step's tensors may be reused by the strategy.
      sums_.push_back(flat_double(metric.sum).clone());
      weights_.push_back(flat_double(metric.weight).clone());
    }
    return;
  }
  check_names(metrics);
  for (size_t i = 0; i < metrics.size(); ++i) {
    add_to(sums_[i], metrics[i].sum);
    add_to(weights_[i], metrics[i].weight);
  }
}

void MetricAccumulator::check_names(const std::vector<Metric>& metrics) const {
  std::vector<std::string> names;
  for (const Metric& metric : metrics) names.push_back(metric.name);
  if (names != names_)
    throw Error(Failure::training,
                convoy::str("the metrics of one batch are ", join(names, ", "), " and of another ", join(names_, ", "),
                            "; a model gives the same ones, in the same order, for every batch"));
  for (size_t i = 0; i < metrics.size(); ++i)
    if (metrics[i].sum.numel() != sums_[i].numel())
      throw Error(Failure::training, convoy::str("metric '", names_[i], "' has ", metrics[i].sum.numel(),
                                                 " numbers for one batch and ", sums_[i].numel(), " for another"));
}

std::map<std::string, MetricValue> MetricAccumulator::reduce(Communicator& world) {
  at::NoGradGuard no_grad;
  std::map<std::string, MetricValue> values;
  if (names_.empty()) return values;
  std::vector<at::Tensor> parts(sums_);
  parts.insert(parts.end(), weights_.begin(), weights_.end());
  at::Tensor all = at::cat(parts);
  world.all_reduce(all, ReduceOp::sum, {"metrics", {}})->wait();
  all = all.to(at::kCPU);
  const double* sum = all.data_ptr<double>();
  const double* weight = sum + all.numel() / 2;
  for (size_t i = 0; i < names_.size(); ++i) {
    const int64_t members = sums_[i].numel();
    MetricValue& value = values[names_[i]];
    value.lower_is_better = lower_is_better_[i];
    double total_sum = 0, total_weight = 0;
    for (int64_t m = 0; m < members; ++m) {
      total_sum += sum[m];
      total_weight += weight[m];
      if (members > 1) value.members.push_back(sum[m] / weight[m]);
    }
    value.value = total_sum / total_weight;
    sum += members;
    weight += members;
  }
  names_.clear();
  lower_is_better_.clear();
  sums_.clear();
  weights_.clear();
  return values;
}

}  // namespace convoy
