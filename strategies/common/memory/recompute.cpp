#include "strategies/common/memory/recompute.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <list>
#include <mutex>

#include "core/base/error.h"
#include "core/model.h"
#include "core/tensors/init.h"

namespace convoy {
namespace {

using torch::autograd::variable_list;

class RecomputedBlock : public torch::autograd::Node {
 public:
  RecomputedBlock(BlockForward again, const TensorList& inputs, TensorList parameters)
      : again_(std::move(again)), parameters_(std::move(parameters)) {
    for (const at::Tensor& input : inputs) {
      wants_.push_back(input.defined() && input.requires_grad());
      inputs_.emplace_back(input, false);
    }
  }

  std::string name() const override { return "ConvoyRecomputedBlock"; }

  variable_list apply(variable_list&& gradients) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (at::GradMode::is_enabled())
      throw Error(Failure::config, "a block that is recomputed has no second derivative; leave it out of `recompute`");
    const TensorList inputs = detached_inputs();
    variable_list outputs;
    {
      at::AutoGradMode with_graph(true);
      outputs = again_(inputs);
    }
    variable_list roots, given;
    for (size_t i = 0, slot = 0; i < outputs.size(); ++i) {
      if (!differentiable(outputs[i])) continue;
      const at::Tensor& gradient = gradients[slot++];
      if (!outputs[i].requires_grad() || !gradient.defined()) continue;
      roots.push_back(outputs[i]);
      given.push_back(gradient);
    }
    return found(inputs, roots, given);
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& input : inputs_) input.reset_data();
  }

  // True for types of outputs that have an edge of this node.
  static bool differentiable(const at::Tensor& output) {
    return output.defined() && torch::autograd::isDifferentiableType(output.scalar_type());
  }

 private:
  // LibTorch compares the version of a saved tensor with its version when it was saved.
  at::Tensor saved_input(size_t i) const {
    try {
      return inputs_[i].unpack();
    } catch (const c10::Error& error) {
      throw Error(Failure::config, "input ", i,
                  " of a recomputed block was changed in place after the block's forward; use "
                  "operations that return a new tensor, or strategy.recompute: none: ",
                  error.what_without_backtrace());
    }
  }

  TensorList detached_inputs() {
    TensorList inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      at::Tensor input = saved_input(i);
      if (wants_[i]) input = input.detach().set_requires_grad(true);
      inputs.push_back(std::move(input));
    }
    return inputs;
  }

  variable_list found(const TensorList& inputs, const variable_list& roots, const variable_list& given) {
    variable_list results(inputs.size() + parameters_.size());
    variable_list wanted;
    std::vector<size_t> indices;
    const auto want = [&](const at::Tensor& tensor, size_t index) {
      if (!task_should_compute_output(index)) return;
      wanted.push_back(tensor);
      indices.push_back(index);
    };
    for (size_t i = 0; i < inputs.size(); ++i)
      if (wants_[i]) want(inputs[i], i);
    for (size_t i = 0; i < parameters_.size(); ++i) want(parameters_[i], inputs.size() + i);
    if (roots.empty() || wanted.empty()) return results;
    const variable_list gradients = torch::autograd::grad(roots, wanted, given, false, false, true);
    for (size_t i = 0; i < indices.size(); ++i) results[indices[i]] = gradients[i];
    return results;
  }

  BlockForward again_;
  TensorList parameters_;
  std::vector<char> wants_;
  std::vector<torch::autograd::SavedVariable> inputs_;
};

// Restores the buffers of a block, which a second forward changes.
class BlockRestored {
 public:
  explicit BlockRestored(Block& block) {
    for (const at::Tensor& buffer : block.buffers())
      // Restores the data only: a graph that saved the buffer stays valid.
      if (buffer.defined()) buffers_.emplace_back(buffer.variable_data(), buffer.detach().clone());
  }
  ~BlockRestored() {
    for (auto& [buffer, before] : buffers_) buffer.copy_(before);
  }
  BlockRestored(const BlockRestored&) = delete;
  BlockRestored& operator=(const BlockRestored&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

}  // namespace

TensorList recomputed(const BlockForward& first, BlockForward again, const TensorList& inputs,
                      const TensorList& parameters) {
  TensorList all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  if (!torch::autograd::compute_requires_grad(all)) return first(inputs);
  TensorList outputs;
  {
    at::NoGradGuard no_graph;
    outputs = first(inputs);
    // An output may be an unchanged input, which has a history already.
    for (at::Tensor& output : outputs)
      if (output.defined()) output = output.detach();
  }
  auto node = std::make_shared<RecomputedBlock>(std::move(again), inputs, parameters);
  node->set_next_edges(torch::autograd::collect_next_edges(all));
  for (const at::Tensor& output : outputs)
    if (RecomputedBlock::differentiable(output)) torch::autograd::set_history(output, node);
  return outputs;
}

ForwardMoment::ForwardMoment(std::shared_ptr<ForwardState> state, at::Device device, bool own_generators)
    : state_(std::move(state)), then_(*state_) {
  if (!own_generators) return;
  generators_.emplace_back(at::kCPU, generator_state(at::kCPU));
  if (!device.is_cpu()) generators_.emplace_back(device, generator_state(device));
}

TensorList ForwardMoment::run(Block& block, const TensorList& inputs) const {
  const BlockRestored buffers(block);
  std::list<KeptGenerator> generators;
  for (const auto& [device, then] : generators_) {
    generators.emplace_back(device);
    set_generator_state(device, then);
  }
  const ForwardState state = *state_;
  *state_ = then_;
  state_->collecting = state.collecting;
  try {
    TensorList outputs = block.forward(inputs);
    *state_ = state;
    return outputs;
  } catch (...) {
    *state_ = state;
    throw;
  }
}

void check_recomputable(const Block& block, const std::string& name) {
  for (const auto& module : block.modules()) {
    if (dynamic_cast<const LayerModule*>(module.get()) != nullptr) continue;
    const std::string type = module->name();
    if (type.find("Dropout") != std::string::npos)
      throw Error(Failure::config, "strategy.recompute: ", name, " has a ", type,
                  ". It would drop other elements when the block runs again, because ranks that are threads share a "
                  "generator; use Layers::dropout, exclude the block, or start one process per rank");
  }
}

}  // namespace convoy
