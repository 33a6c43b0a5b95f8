// model_of: a Model with one block per torch module, for plugins. Every strategy then trains unchanged modules, and
// `convoy verify` and `convoy explain` work.
//
//   CONVOY_PLUGIN(registry) {
//     registry.catalogues.kinds["model"].push_back({"net", "two layers", {}});
//     registry.models.add("net", [](const convoy::Options&, const convoy::Schema&) {
//       return convoy::model_of([] {
//         return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
//                                      torch::nn::Linear(64, 10));
//       });
//     });
//   }
//
// Each module maps one tensor to one tensor. Names of tensors are their paths in the Sequential: "1.weight".
// Initial values come from torch's generator, seeded by the run's seed and the name of the block. So they are equal in
// every layout. torch's dropout draws from the same generator, so its draws depend on the layout.
// The header is enough: a plugin links only convoy::core.
#pragma once
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/model.h"

namespace convoy {

// Block of one torch module. Its tensors have the names that they have in the module.
class ModuleBlock : public Block {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  ModuleBlock(std::shared_ptr<torch::nn::Module> module, Forward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {
    share_tensors(*module_);
  }
  explicit ModuleBlock(torch::nn::AnyModule module)
      : ModuleBlock(module.ptr(),
                    [module](const at::Tensor& input) mutable { return module.forward<at::Tensor>(input); }) {}

  TensorList forward(const TensorList& inputs) override {
    TORCH_CHECK(inputs.size() == 1, "a torch module takes one tensor, and the block before it returns ", inputs.size());
    return {forward_(inputs.front())};
  }
  void train(bool on = true) override {
    Block::train(on);
    module_->train(on);
  }

 private:
  void share_tensors(torch::nn::Module& module) {
    for (auto& entry : module.named_parameters(/*recurse=*/false))
      if (entry.value().defined()) register_parameter(entry.key(), entry.value(), entry.value().requires_grad());
    for (auto& entry : module.named_buffers(/*recurse=*/false))
      if (entry.value().defined()) register_buffer(entry.key(), entry.value());
    for (auto& entry : module.named_children()) register_module(entry.key(), entry.value());
  }

  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
};

struct ModuleModelOptions {
  std::string input = "features";      // field of the batch that block 0 takes
  std::string loss = "cross_entropy";  // loss if the configuration names none
  // Metrics of an evaluation batch besides the loss, such as accuracy() of core/metrics/model_metrics.h. Null: none.
  std::function<std::vector<Metric>(const TensorList& outputs, const Batch& batch, Layers& layers)> metrics = nullptr;
};

// A block's name and the function that makes its module.
struct ModuleRecipe {
  std::string name;
  std::function<torch::nn::AnyModule()> make;
};

class ModuleModel : public Model {
 public:
  ModuleModel(std::vector<ModuleRecipe> blocks, ModuleModelOptions options)
      : blocks_(std::move(blocks)), options_(std::move(options)) {}

  int64_t blocks() const override { return int64_t(blocks_.size()); }
  std::string block_name(int64_t index) const override { return blocks_.at(size_t(index)).name; }
  BlockPtr block(int64_t index, Layers&) const override {
    return std::make_shared<ModuleBlock>(blocks_.at(size_t(index)).make());
  }
  TensorList inputs(const Batch& batch) const override { return {batch.at(options_.input)}; }
  std::string default_loss() const override { return options_.loss; }
  std::vector<Metric> metrics(const TensorList& outputs, const Batch& batch, Layers& layers) const override {
    return options_.metrics ? options_.metrics(outputs, batch, layers) : std::vector<Metric>();
  }

 private:
  std::vector<ModuleRecipe> blocks_;
  ModuleModelOptions options_;
};

// Each rank makes only the modules of its local blocks.
inline ModelPtr model_of(std::vector<ModuleRecipe> blocks, ModuleModelOptions options = {}) {
  return std::make_shared<ModuleModel>(std::move(blocks), std::move(options));
}

// Calls `make` once for each block and once more. Prefer a list of recipes if building the whole model is expensive.
inline ModelPtr model_of(const std::function<torch::nn::Sequential()>& make, ModuleModelOptions options = {}) {
  std::vector<ModuleRecipe> blocks;
  for (const auto& child : make()->named_children())
    blocks.push_back({child.key(), [make, index = blocks.size()] {
                        torch::nn::Sequential whole = make();
                        return torch::nn::AnyModule(*(whole->begin() + int64_t(index)));
                      }});
  return model_of(std::move(blocks), std::move(options));
}

}  // namespace convoy
