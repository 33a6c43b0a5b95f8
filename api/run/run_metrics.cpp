// Each rank knows the names that all ranks have agreed on. One all-reduce adds their sums and counts the ranks that
// have logged another name. Only then do the ranks exchange names, over the control channel.
#include "api/run/run_metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <utility>

namespace convoy {

void RunMetrics::add(const std::string& name, const at::Tensor& sum, const at::Tensor& weight) {
  at::NoGradGuard no_grad;
  if (!sum.defined() || sum.numel() != 1)
    throw Error(Failure::training, "log: '", name, "' is ",
                sum.defined() ? convoy::str("a tensor of shape ", sum.sizes()) : "an undefined tensor",
                "; give one number, the sum over the rows of this rank");
  Value& value = values_[name];
  for (auto [total, added] : {std::pair(&value.sum, &sum), std::pair(&value.weight, &weight)}) {
    const at::Tensor one = added->detach().reshape({}).to(at::kDouble);
    *total = total->defined() ? *total + one : one.clone();  // a clone: the caller may reuse its tensor
  }
}

std::map<std::string, MetricValue> RunMetrics::reduce() {
  at::NoGradGuard no_grad;
  std::map<std::string, MetricValue> values;
  bool unknown = false;
  add_sums(names_, values, unknown);
  if (unknown) {
    const std::vector<std::string> added = agree_on_new();
    names_.insert(names_.end(), added.begin(), added.end());
    add_sums(added, values, unknown);
  }
  values_.clear();
  return values;
}

void RunMetrics::add_sums(const std::vector<std::string>& names, std::map<std::string, MetricValue>& values,
                          bool& unknown) {
  const at::Device device = context_.devices.front();
  const auto number = [&](double value) { return at::scalar_tensor(value, at::TensorOptions(at::kDouble)).to(device); };
  const bool news = std::any_of(values_.begin(), values_.end(), [this](const auto& value) {
    return std::find(names_.begin(), names_.end(), value.first) == names_.end();
  });
  std::vector<at::Tensor> numbers{number(news ? 1 : 0)};
  for (const std::string& name : names) {
    const auto found = values_.find(name);
    const bool logged = found != values_.end();
    numbers.push_back(logged ? found->second.sum.to(device) : number(0));
    numbers.push_back(logged ? found->second.weight.to(device) : number(0));
  }
  at::Tensor all = at::stack(numbers);
  context_.world->all_reduce(all, ReduceOp::sum, {"metrics", {}})->wait();
  all = all.to(at::kCPU);
  const double* from = all.const_data_ptr<double>();
  unknown = *from++ > 0;
  for (const std::string& name : names) {
    const double sum = *from++, weight = *from++;
    if (weight == 0) continue;
    MetricValue value;
    value.value = sum / weight;
    value.weight = weight;
    values[name] = value;
  }
}

std::vector<std::string> RunMetrics::agree_on_new() {
  Json mine = Json::array();
  for (const auto& [name, value] : values_)
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) mine.push_back(name);
  const auto timeout = timeout_of(context_.config.launch.collective);
  std::vector<std::string> added;
  for (const std::string& text :
       context_.channel->agree(str("run/metrics/", agreements_++), context_.rank, context_.size, mine.dump(), timeout))
    for (const Json& name : Json::parse(text))
      if (std::find(added.begin(), added.end(), name) == added.end()) added.push_back(name);
  return added;
}

}  // namespace convoy
