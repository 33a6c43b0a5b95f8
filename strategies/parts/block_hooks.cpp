#include "strategies/parts/block_hooks.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace convoy {
namespace {

using torch::autograd::variable_list;

class Border : public torch::autograd::Node {
 public:
  explicit Border(std::function<void()> reached) : reached_(std::move(reached)) {}
  std::string name() const override { return "ConvoyBlockBorder"; }
  variable_list apply(variable_list&& gradients) override {
    reached_();
    return std::move(gradients);
  }

 private:
  std::function<void()> reached_;
};

}  // namespace

TensorList with_border(const TensorList& values, std::function<void()> reached) {
  if (!at::GradMode::is_enabled()) return values;
  TensorList wanting;
  for (const at::Tensor& value : values)
    if (value.defined() && value.requires_grad()) wanting.push_back(value);
  if (wanting.empty()) return values;
  auto border = std::make_shared<Border>(std::move(reached));
  border->set_next_edges(torch::autograd::collect_next_edges(wanting));
  TensorList passed;
  for (const at::Tensor& value : values) {
    passed.push_back(value);
    if (!value.defined() || !value.requires_grad()) continue;
    passed.back() = value.detach();
    torch::autograd::set_history(passed.back(), border);
  }
  return passed;
}

}  // namespace convoy
