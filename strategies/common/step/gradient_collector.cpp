#include "strategies/common/step/gradient_collector.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <algorithm>

#include "core/base/error.h"
#include "core/optim/catalogue/catalogue.h"

namespace convoy {

std::vector<ParameterGroup> parameter_groups(const std::vector<ParameterPtr>& parameters,
                                             const std::vector<int>& listed, const Component& optimizer) {
  const OptimizerOptions options = optimizer_options(optimizer);
  std::vector<ParameterGroup> groups;
  for (int index : listed) {
    const Parameter& parameter = *parameters[size_t(index)];
    const GroupSettings settings = group_settings(options, parameter.name);
    const auto same_group = [&](const ParameterGroup& other) {
      return other.group.learning_rate_factor == settings.learning_rate_factor &&
             other.group.weight_decay == settings.weight_decay && other.counted == parameter.counted;
    };
    auto group = std::find_if(groups.begin(), groups.end(), same_group);
    if (group == groups.end()) group = groups.insert(groups.end(), {settings, parameter.counted, {}});
    group->indices.push_back(index);
  }
  return groups;
}

namespace {

using torch::autograd::variable_list;

class Boundary : public torch::autograd::Node {
 public:
  explicit Boundary(std::function<void()> reached) : reached_(std::move(reached)) {}
  std::string name() const override { return "ConvoyBlockBoundary"; }
  variable_list apply(variable_list&& gradients) override {
    reached_();
    return std::move(gradients);
  }

 private:
  std::function<void()> reached_;
};

}  // namespace

TensorList with_boundary(const TensorList& values, std::function<void()> reached) {
  if (!at::GradMode::is_enabled()) return values;
  TensorList wanting;
  for (const at::Tensor& value : values)
    if (value.defined() && value.requires_grad()) wanting.push_back(value);
  if (wanting.empty()) return values;
  auto boundary = std::make_shared<Boundary>(std::move(reached));
  boundary->set_next_edges(torch::autograd::collect_next_edges(wanting));
  TensorList passed;
  for (const at::Tensor& value : values) {
    passed.push_back(value);
    if (!value.defined() || !value.requires_grad()) continue;
    passed.back() = value.detach();
    torch::autograd::set_history(passed.back(), boundary);
  }
  return passed;
}

using torch::autograd::variable_list;

struct GradientCollector::Shared {
  std::vector<ParameterPtr> parameters;
  StatePtr state;
  std::function<void(int)> ready;  // empty after the collector is destroyed
  std::function<void(int)> open;
};

class GradientCollector::Hook : public torch::autograd::FunctionPreHook {
 public:
  Hook(std::shared_ptr<Shared> shared, int index) : shared_(std::move(shared)), index_(index) {}

  variable_list operator()(const variable_list& gradients) override {
    // A backward that the strategy did not start, such as one inside a model, is not intercepted.
    if (!shared_->ready || !shared_->state->collecting) return gradients;
    Parameter& parameter = *shared_->parameters[size_t(index_)];
    if (!parameter.gradient.defined() && shared_->open) shared_->open(index_);
    CONVOY_CHECK(parameter.gradient.defined(), "a gradient of ", parameter.name,
                 " arrives while none of its blocks is differentiated");
    if (parameter.awaited)
      shared_->state->later->list.push_back(
          [shared = shared_, index = index_, gradient = gradients[0]] { take(*shared, index, gradient); });
    else
      take(*shared_, index_, gradients[0]);
    return {at::Tensor()};
  }

 private:
  static void take(Shared& shared, int index, const at::Tensor& gradient) {
    Parameter& parameter = *shared.parameters[size_t(index)];
    at::NoGradGuard no_grad;
    parameter.reached = parameter.reached || parameter.written || gradient.defined();
    if (gradient.defined()) {
      if (!parameter.written)
        parameter.gradient.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
      else
        parameter.gradient.add_(gradient);
    } else if (!parameter.written) {
      parameter.gradient.zero_();
    }
    parameter.written = true;
    parameter.awaited = false;
    shared.ready(index);
  }

  std::shared_ptr<Shared> shared_;
  int index_;
};

GradientCollector::GradientCollector(std::vector<ParameterPtr> parameters, StatePtr state,
                                     std::function<void(int)> ready, std::function<void(int)> open)
    : shared_(std::make_shared<Shared>(
          Shared{std::move(parameters), std::move(state), std::move(ready), std::move(open)})) {
  watch();
}

void GradientCollector::watch() {
  nodes_.resize(shared_->parameters.size());
  for (size_t index = 0; index < nodes_.size(); ++index) {
    const auto node = torch::autograd::impl::grad_accumulator(shared_->parameters[index]->value);
    if (node == nodes_[index]) continue;
    nodes_[index] = node;
    node->add_pre_hook(std::make_unique<Hook>(shared_, int(index)));
  }
}

GradientCollector::~GradientCollector() { shared_->ready = nullptr; }

void GradientCollector::begin() {
  for (const ParameterPtr& parameter : shared_->parameters) parameter->written = parameter->awaited = false;
}

void GradientCollector::finish() {
  for (const ParameterPtr& parameter : shared_->parameters) {
    if (parameter->written) continue;
    parameter->gradient.zero_();
    parameter->written = true;
  }
}

}  // namespace convoy
