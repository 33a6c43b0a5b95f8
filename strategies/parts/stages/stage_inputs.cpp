#include "strategies/parts/stages/stage_inputs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "core/error.h"

namespace convoy {

// The end of a stage's graph: what reaches it is what the stage before wants to know.
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
  CONVOY_CHECK(activations.tensors.size() == activations.trained.size(), "activations without what is trained of them");
  for (size_t i = 0; i < activations.tensors.size(); ++i) {
    tensors_.push_back(activations.tensors[i].detach());
    if (!activations.trained[i]) continue;
    if (!keeper_) keeper_ = std::make_shared<Keeper>();
    keeper_->add(tensors_.back());
  }
}

TensorList StageInputs::gradients() { return keeper_ ? keeper_->take() : TensorList(); }

}  // namespace convoy
