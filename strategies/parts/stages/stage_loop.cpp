#include "strategies/parts/stages/stage_loop.h"

#include <functional>

#include "core/error.h"

namespace convoy {
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

const HeldStage* StageLoop::find(int stage) const {
  for (const HeldStage& held : stages_)
    if (held.stage == stage) return &held;
  return nullptr;
}

const HeldStage& StageLoop::held(int stage) const {
  const HeldStage* const found = find(stage);
  if (found == nullptr) throw Error(Failure::internal, convoy::str("stage ", stage, " is not executed here"));
  return *found;
}

void StageLoop::train(const std::vector<Action>& actions, const StepWork& work, StageLink& link) {
  live_.clear();
  size_t forwards = 0;  // up to the last one's end
  for (size_t index = 0; index < actions.size(); ++index)
    if (actions[index].kind == Action::Kind::forward) forwards = index + 1;
  for (size_t index = 0; index < actions.size(); ++index) {
    link.ahead(index);
    if (actions[index].kind == Action::Kind::forward)
      forward(actions[index], work, link);
    else
      backward(actions[index], work, link, index >= forwards);
  }
  CONVOY_CHECK(live_.empty(), live_.size(), " forwards without their backward");
}

void StageLoop::forward(const Action& action, const StepWork& work, StageLink& link) {
  ModelPart& part = *held(action.stage).model;
  const Batch& micro = work.micro[static_cast<size_t>(action.micro)];
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
  const HeldStage& here = held(action.stage);
  const auto found = live_.find({action.stage, action.micro});
  CONVOY_CHECK(found != live_.end(), "backward of stage ", action.stage, ", micro-batch ", action.micro,
               " before its forward");
  Live live = std::move(found->second);
  live_.erase(found);
  TensorList gradients;
  if (!here.model->last()) gradients = link.take_gradients(action.stage, action.micro);
  if (static_cast<size_t>(action.micro) + 1 == work.micro.size()) {
    // Later stages are done with this micro-batch, and so with the step: their gradients are here.
    ties_.fold(here.part);
    work.hooks.last_backward(here.part);
  }
  // Where the schedule drains, the stage before has nothing to do but wait for this one, and is told in front of what only
  // this stage's own weights want. Earlier it has forwards to do, and a product is quicker while its factors are in the cache.
  const auto tell = [&] {
    if (live.inputs) link.give_gradients(action.stage - 1, action.micro, live.inputs->gradients());
  };
  const bool awaited = draining && live.inputs && live.inputs->trained() && find(action.stage - 1) == nullptr;
  const std::function<void()> early = awaited ? std::function<void()>(tell) : nullptr;
  if (here.model->last())
    here.model->backward(live.loss, work.nominal, early);
  else
    here.model->backward(live.roots, gradients, early);
  if (!early) tell();
}

std::vector<Metric> StageLoop::evaluate(const std::vector<Action>& actions, const std::vector<Batch>& micro,
                                        StageLink& link) {
  std::vector<Metric> metrics;
  for (size_t index = 0; index < actions.size(); ++index) {
    const Action& action = actions[index];
    link.ahead(index);
    ModelPart& part = *held(action.stage).model;
    const Batch& batch = micro[static_cast<size_t>(action.micro)];
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
