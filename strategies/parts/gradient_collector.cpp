#include "strategies/parts/gradient_collector.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "core/error.h"

namespace convoy {

using torch::autograd::variable_list;

struct GradientCollector::Shared {
  std::vector<ParameterPtr> parameters;
  std::shared_ptr<const ForwardState> state;
  std::function<void(int)> ready;  // empty once the collector is gone
};

class GradientCollector::Hook : public torch::autograd::FunctionPreHook {
 public:
  Hook(std::shared_ptr<Shared> shared, int index) : shared_(std::move(shared)), index_(index) {}

  variable_list operator()(const variable_list& gradients) override {
    // A backward that somebody else runs, inside a model say, keeps its own ways.
    if (!shared_->ready || !shared_->state->collecting) return gradients;
    Parameter& parameter = *shared_->parameters[static_cast<size_t>(index_)];
    CONVOY_CHECK(parameter.gradient.defined(), "a gradient of ", parameter.name,
                 " comes while none of its blocks is differentiated");
    if (parameter.awaited)
      shared_->state->later->list.push_back(
          [shared = shared_, index = index_, gradient = gradients[0]] { take(*shared, index, gradient); });
    else
      take(*shared_, index_, gradients[0]);
    return {at::Tensor()};
  }

 private:
  static void take(Shared& shared, int index, const at::Tensor& gradient) {
    Parameter& parameter = *shared.parameters[static_cast<size_t>(index)];
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

GradientCollector::GradientCollector(std::vector<ParameterPtr> parameters, std::shared_ptr<const ForwardState> state,
                                     std::function<void(int)> ready)
    : shared_(std::make_shared<Shared>(Shared{std::move(parameters), std::move(state), std::move(ready)})) {
  for (size_t index = 0; index < shared_->parameters.size(); ++index) {
    nodes_.push_back(torch::autograd::impl::grad_accumulator(shared_->parameters[index]->value));
    nodes_.back()->add_pre_hook(std::make_unique<Hook>(shared_, static_cast<int>(index)));
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
