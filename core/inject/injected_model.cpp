// Around the model: its blocks are themselves, names and tensors included, with a look at the faults before each forward.
#include <limits>

#include "core/inject/around.h"
#include "core/model.h"
#include "core/wrapped_model.h"

namespace convoy {
namespace {

class InjectedBlock : public Block {
 public:
  InjectedBlock(BlockPtr inner, int64_t index, std::shared_ptr<Injector> injector)
      : inner_(std::move(inner)), index_(index), injector_(std::move(injector)) {
    for (const auto& child : inner_->named_children()) register_module(child.key(), child.value());
    for (const auto& own : inner_->named_parameters(false))
      register_parameter(own.key(), own.value(), own.value().requires_grad());
    for (const auto& own : inner_->named_buffers(false)) register_buffer(own.key(), own.value());
  }

  void train(bool on) override {
    Block::train(on);
    inner_->train(on);
  }

  TensorList forward(const TensorList& inputs) override {
    // Not GradMode: what will be recomputed runs without a graph at first.
    const bool no_number = is_training() && injector_->forward(index_);
    TensorList outputs = inner_->forward(inputs);
    for (at::Tensor& output : outputs)
      if (no_number && output.is_floating_point()) output = output * std::numeric_limits<double>::quiet_NaN();
    return outputs;
  }

  std::unique_ptr<ParameterHandle> more;  // a parameter that the model of other ranks has not

 private:
  BlockPtr inner_;
  int64_t index_;
  std::shared_ptr<Injector> injector_;
};

class InjectedModel : public WrappedModel {
 public:
  InjectedModel(ModelPtr inner, std::shared_ptr<Injector> injector)
      : WrappedModel(std::move(inner)), injector_(std::move(injector)) {}

  BlockPtr block(int64_t index, Layers& layers) const override {
    auto block = std::make_shared<InjectedBlock>(wrapped().block(index, layers), index, injector_);
    if (injector_->has_other_parameters()) block->more = layers.parameter("injected", {1}, {Init::Kind::zeros, 0, 0});
    return block;
  }

 private:
  std::shared_ptr<Injector> injector_;
};

}  // namespace

ModelPtr injected_model(ModelPtr model, std::shared_ptr<Injector> injector) {
  return std::make_shared<InjectedModel>(std::move(model), std::move(injector));
}

}  // namespace convoy
