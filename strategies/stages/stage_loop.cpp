#include "strategies/stages/stage_loop.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <functional>

#include "core/base/error.h"

namespace convoy {

// End of a stage's graph: collects the gradients for the previous stage.
class StageInputs::Keeper : public torch::autograd::Node {
 public:
  std::string name() const override { return "ConvoyStageInputs"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    gradients_ = std::move(gradients);
    return {};
  }

  void add(const at::Tensor& input) {
    torch::autograd::set_history(input, shared_from_this());
    options_.push_back(at::TensorOptions(input.scalar_type()).device(input.device()));
    sizes_.push_back(input.sizes().vec());
  }

  TensorList take() {
    gradients_.resize(sizes_.size());
    for (size_t i = 0; i < sizes_.size(); ++i)
      if (!gradients_[i].defined()) gradients_[i] = at::zeros(sizes_[i], options_[i]);
    return std::move(gradients_);
  }

 private:
  std::vector<at::TensorOptions> options_;
  std::vector<std::vector<int64_t>> sizes_;
  torch::autograd::variable_list gradients_;
};

StageInputs::StageInputs(const Activations& activations) {
  CONVOY_CHECK(activations.tensors.size() == activations.trained.size(),
               "activations and trained flags differ in number");
  for (size_t i = 0; i < activations.tensors.size(); ++i) {
    tensors_.push_back(activations.tensors[i].detach());
    if (!activations.trained[i]) continue;
    if (!keeper_) keeper_ = std::make_shared<Keeper>();
    keeper_->add(tensors_.back());
  }
}

TensorList StageInputs::gradients() { return keeper_ ? keeper_->take() : TensorList(); }

namespace {

Activations given(TensorList outputs) {
  Activations activations;
  for (at::Tensor& output : outputs) {
    activations.trained.push_back(output.requires_grad() ? 1 : 0);
    activations.tensors.push_back(output.detach());
  }
  return activations;
}

}  // namespace

const LocalStage* StageLoop::find(int stage) const {
  for (const LocalStage& local : stages_)
    if (local.stage == stage) return &local;
  return nullptr;
}

const LocalStage& StageLoop::local_stage(int stage) const {
  const LocalStage* const found = find(stage);
  if (found == nullptr) throw Error(Failure::internal, "stage ", stage, " is not executed here");
  return *found;
}

void StageLoop::train(const std::vector<Action>& actions, const StepWork& work, StageLink& link) {
  live_.clear();
  size_t forwards = 0;  // index after the last forward
  for (size_t index = 0; index < actions.size(); ++index)
    if (actions[index].kind == Action::Kind::forward) forwards = index + 1;
  for (size_t index = 0; index < actions.size(); ++index) {
    link.ahead(index);
    if (actions[index].kind == Action::Kind::forward)
      forward(actions[index], work, link);
    else
      backward(actions[index], work, link, index >= forwards);
  }
  CONVOY_CHECK(live_.empty(), live_.size(), " forwards without a backward");
}

void StageLoop::forward(const Action& action, const StepWork& work, StageLink& link) {
  ModelPart& part = *local_stage(action.stage).model;
  const Batch& micro = work.micro[size_t(action.micro)];
  Live live;
  TensorList inputs;
  if (!part.first()) {
    live.inputs = std::make_unique<StageInputs>(link.take_activations(action.stage, action.micro));
    inputs = live.inputs->tensors();
  }
  TensorList outputs = part.forward(micro, work.step, inputs);
  if (part.last()) {
    live.loss = part.loss(outputs, micro);
    work.hooks.loss(live.loss);
  } else {
    live.roots = roots_of(outputs);
    link.give_activations(action.stage + 1, action.micro, given(std::move(outputs)));
  }
  live_[{action.stage, action.micro}] = std::move(live);
}

void StageLoop::backward(const Action& action, const StepWork& work, StageLink& link, bool draining) {
  const LocalStage& here = local_stage(action.stage);
  const auto found = live_.find({action.stage, action.micro});
  CONVOY_CHECK(found != live_.end(), "backward of stage ", action.stage, ", micro-batch ", action.micro,
               " before its forward");
  Live live = std::move(found->second);
  live_.erase(found);
  TensorList gradients;
  if (!here.model->last()) gradients = link.take_gradients(action.stage, action.micro);
  if (size_t(action.micro) + 1 == work.micro.size()) {
    // Later stages have finished this micro-batch, and so the step: their gradients are complete.
    ties_.fold(here.part);
    work.hooks.last_backward(here.part);
  }
  // While the schedule drains, the previous stage only waits for this one. So it gets its gradients before the weight
  // gradients are computed.
  // Earlier it still has forwards to run, and weight gradients are faster while their factors are in the cache.
  const auto send_gradients = [&] {
    if (live.inputs) link.give_gradients(action.stage - 1, action.micro, live.inputs->gradients());
  };
  const bool awaited = draining && live.inputs && live.inputs->trained() && find(action.stage - 1) == nullptr;
  const std::function<void()> early = awaited ? std::function<void()>(send_gradients) : nullptr;
  if (here.model->last())
    here.model->backward(live.loss, work.nominal, early);
  else
    here.model->backward(live.roots, gradients, early);
  if (!early) send_gradients();
}

std::vector<Metric> StageLoop::evaluate(const std::vector<Action>& actions, const std::vector<Batch>& micro,
                                        StageLink& link) {
  std::vector<Metric> metrics;
  for (size_t index = 0; index < actions.size(); ++index) {
    const Action& action = actions[index];
    link.ahead(index);
    ModelPart& part = *local_stage(action.stage).model;
    const Batch& batch = micro[size_t(action.micro)];
    TensorList inputs;
    if (!part.first()) inputs = link.take_activations(action.stage, action.micro).tensors;
    TensorList outputs = part.evaluate(batch, inputs);
    if (!part.last()) {
      link.give_activations(action.stage + 1, action.micro, given(std::move(outputs)));
      continue;
    }
    for (Metric& metric : part.metrics(outputs, batch)) add_metric(metrics, std::move(metric));
  }
  return metrics;
}

}  // namespace convoy
