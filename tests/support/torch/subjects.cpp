#include "tests/support/torch/subjects.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "core/base/error.h"
#include "core/model.h"
#include "tests/support/torch/random_tensors.h"

namespace convoy::testing {
namespace {

Batch features_and_classes(int64_t features, int64_t classes) {
  Batch batch;
  batch.rows = subject_rows;
  batch.tensors = {{"features", normal({subject_rows, features}, "features", 3)},
                   {"target", integers({subject_rows}, "target", classes, 3)}};
  return batch;
}

class CrossEntropy : public LossFunction {
 public:
  Loss operator()(const Examples& examples, Layers& layers) const override {
    const at::Tensor each = layers.cross_entropy(examples.prediction, examples.target);
    return {each.sum(), at::scalar_tensor(static_cast<double>(each.size(0)), each.options().requires_grad(false))};
  }
};

class WeightedBinary : public LossFunction {
 public:
  Loss operator()(const Examples& examples, Layers&) const override {
    const at::Tensor each =
        at::binary_cross_entropy_with_logits(examples.prediction, examples.target, {}, {}, at::Reduction::None);
    const at::Tensor weight = examples.weight.unsqueeze(-1).expand_as(each);
    return {(each * weight).sum(), weight.sum()};
  }
};

using Forward = std::function<TensorList(const TensorList&)>;

// A block with the given forward; `keep` owns its layers.
class FunctionBlock : public Block {
 public:
  explicit FunctionBlock(Forward forward) : forward_(std::move(forward)) {}
  TensorList forward(const TensorList& inputs) override { return forward_(inputs); }
  template <class Module>
  void keep(const std::string& name, const Module& module) {
    register_module(name, module);
  }
  void set(Forward forward) { forward_ = std::move(forward); }

 private:
  Forward forward_;
};

using Build = std::function<BlockPtr(int64_t index, Layers&)>;

class TestModel : public Model {
 public:
  TestModel(int64_t blocks, Build build, std::vector<std::string> inputs)
      : blocks_(blocks), build_(std::move(build)), inputs_(std::move(inputs)) {}
  int64_t blocks() const override { return blocks_; }
  std::string block_name(int64_t index) const override { return convoy::str("blocks.", index); }
  BlockPtr block(int64_t index, Layers& layers) const override { return build_(index, layers); }
  TensorList inputs(const Batch& batch) const override {
    TensorList list;
    for (const std::string& name : inputs_) list.push_back(batch.at(name));
    return list;
  }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    const at::Tensor* weight = batch.find("weight");
    return {outputs[0], batch.at("target"), weight == nullptr ? at::Tensor() : *weight};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  int64_t blocks_;
  Build build_;
  std::vector<std::string> inputs_;
};

// A chain of layers with functions between them.
BlockPtr chain(const std::vector<Layer>& layers, bool activate) {
  auto block = std::make_shared<FunctionBlock>([layers, activate](const TensorList& in) -> TensorList {
    at::Tensor value = in[0];
    for (const Layer& layer : layers) value = layer->forward(value);
    return {activate ? value.tanh() : value};
  });
  for (size_t i = 0; i < layers.size(); ++i) block->keep(convoy::str("layer", i), layers[i]);
  return block;
}

Subject subject(const char* name, int64_t blocks, Build build, std::vector<std::string> inputs, Batch data,
                std::shared_ptr<const LossFunction> loss) {
  return {name, [=] { return std::make_shared<TestModel>(blocks, build, inputs); }, std::move(loss), std::move(data)};
}

}  // namespace

Subject mlp_subject() {
  const auto build = [](int64_t index, Layers& layers) {
    const int64_t sizes[] = {6, 10, 9, 5};
    return chain({layers.linear("linear", sizes[index], sizes[index + 1])}, index < 2);
  };
  return subject("mlp", 3, build, {"features"}, features_and_classes(6, 5), std::make_shared<CrossEntropy>());
}

Subject pairs_subject() {
  const auto build = [](int64_t, Layers& layers) {
    auto block = std::make_shared<FunctionBlock>(nullptr);
    const Layer user = layers.embedding("user", 20, 4), item = layers.embedding("item", 30, 4);
    const Layer hidden = layers.linear("hidden", 8, 6), out = layers.linear("out", 10, 1);
    block->keep("user", user);
    block->keep("item", item);
    block->keep("hidden", hidden);
    block->keep("out", out);
    block->set([=](const TensorList& in) -> TensorList {
      const at::Tensor items = item->forward(in[1]);  // [B, 5, 4]
      const at::Tensor users = user->forward(in[0]).unsqueeze(-2).expand_as(items);
      const at::Tensor deep = hidden->forward(at::cat({users, items}, -1)).relu();
      return {out->forward(at::cat({users * items, deep}, -1)).squeeze(-1)};
    });
    return block;
  };
  Batch data;
  data.rows = subject_rows;
  at::Tensor target = at::zeros({subject_rows, 5}, at::kDouble);
  target.select(1, 0).fill_(1);
  data.tensors = {{"user", integers({subject_rows}, "user", 20, 3)},
                  {"item", integers({subject_rows, 5}, "item", 30, 3)},
                  {"target", target},
                  {"weight", normal({subject_rows}, "weight", 3).abs()}};
  return subject("pairs", 1, build, {"user", "item"}, data, std::make_shared<WeightedBinary>());
}

Subject norms_subject() {
  const auto build = [](int64_t index, Layers& layers) {
    if (index == 1) return chain({layers.linear("out", 8, 5)}, false);
    // No bias before batch norm, because its gradient is zero except for rounding. A large eps, because shares of two
    // or three rows may have a tiny variance: Adam and batch norm would make rounding errors a thousand times larger.
    LinearOptions plain;
    plain.bias = false;
    return chain({layers.linear("linear", 6, 8, plain), layers.batch_norm("batch", 8, 1e-2),
                  layers.layer_norm("layer", 8), layers.dropout("dropout", 0.3)},
                 true);
  };
  return subject("norms", 2, build, {"features"}, features_and_classes(6, 5), std::make_shared<CrossEntropy>());
}

Subject dropout_subject() {
  const auto build = [](int64_t index, Layers& layers) {
    if (index == 2) return chain({layers.linear("out", 8, 5)}, false);
    return chain({layers.linear("linear", index == 0 ? 6 : 8, 8), layers.dropout("dropout", 0.4)}, true);
  };
  return subject("dropout", 3, build, {"features"}, features_and_classes(6, 5), std::make_shared<CrossEntropy>());
}

Subject tied_subject() {
  const auto build = [](int64_t, Layers& layers) {
    auto block = std::make_shared<FunctionBlock>(nullptr);
    const Layer tokens = layers.embedding("tokens", 12, 6), unused = layers.linear("unused", 7, 7);
    LinearOptions tied;
    tied.bias = false;
    tied.tied_to = layers.name("tokens.weight");
    const Layer out = layers.linear("out", 6, 12, tied), twice = layers.linear("twice", 6, 6);
    const std::shared_ptr<ParameterHandle> scale = layers.parameter("scale", {6}, {Init::Kind::normal, 1, 0.1});
    torch::nn::Linear own(6, 6);
    block->keep("tokens", tokens);
    block->keep("unused", unused);
    block->keep("out", out);
    block->keep("twice", twice);
    block->keep("own", own.ptr());
    block->set([=](const TensorList& in) mutable -> TensorList {
      at::Tensor value = tokens->forward(in[0]).mean(-2) * scale->get();
      value = twice->forward(twice->forward(value).tanh());
      return {out->forward(own->forward(value).tanh())};
    });
    return block;
  };
  Batch data;
  data.rows = subject_rows;
  data.tensors = {{"tokens", integers({subject_rows, 3}, "tokens", 12, 3)},
                  {"target", integers({subject_rows}, "target", 12, 3)}};
  return subject("tied", 1, build, {"tokens"}, data, std::make_shared<CrossEntropy>());
}

Subject foreign_subject() {
  const auto build = [](int64_t index, Layers& layers) {
    auto block = std::make_shared<FunctionBlock>(nullptr);
    if (index == 2) return chain({layers.linear("out", 8, 5)}, false);
    torch::nn::Linear first(index == 0 ? 6 : 8, 8), second(8, 8);
    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({8}));
    if (index == 1) second->bias.set_requires_grad(false);
    block->keep("first", first.ptr());
    block->keep("second", second.ptr());
    block->keep("norm", norm.ptr());
    block->set([=](const TensorList& in) mutable -> TensorList {
      const at::Tensor value = norm->forward(first->forward(in[0])).tanh();
      return {value + second->forward(value).tanh()};
    });
    return std::static_pointer_cast<Block>(block);
  };
  return subject("foreign", 3, build, {"features"}, features_and_classes(6, 5), std::make_shared<CrossEntropy>());
}

}  // namespace convoy::testing
