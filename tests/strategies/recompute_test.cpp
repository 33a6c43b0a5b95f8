// Blocks that activation checkpointing would train wrongly: they change the inputs of their second forward.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/model.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

// Changes the input of the middle one of three blocks before its linear layer.
using Change = std::function<at::Tensor(const at::Tensor& input)>;

class ChangingBlock : public Block {
 public:
  ChangingBlock(Layers& layers, int64_t in, int64_t out, Change change) : change_(std::move(change)) {
    linear_ = register_module("linear", layers.linear("linear", in, out));
  }
  TensorList forward(const TensorList& inputs) override {
    TensorList outputs = inputs;
    outputs[0] = linear_->forward(change_ ? change_(inputs[0]) : inputs[0]);
    return outputs;
  }

 private:
  Change change_;
  Layer linear_;
};

// `extra`: changes the first block's input, which passes through all blocks together with their results.
class ChangingModel : public Model {
 public:
  ChangingModel(Change change, Change extra) : change_(std::move(change)), extra_(std::move(extra)) {}
  int64_t blocks() const override { return 3; }
  std::string block_name(int64_t index) const override { return convoy::str("blocks.", index); }
  BlockPtr block(int64_t index, Layers& layers) const override {
    const int64_t sizes[] = {6, 8, 8, 5};
    return std::make_shared<ChangingBlock>(layers, sizes[index], sizes[index + 1], index == 1 ? change_ : nullptr);
  }
  TensorList inputs(const Batch& batch) const override {
    if (!extra_) return {batch.at("features")};
    return {batch.at("features"), batch.at("features").clone()};
  }
  Examples examples(const TensorList& outputs, const Batch& batch) const override {
    if (extra_) extra_(outputs[1]);
    return {outputs[0], batch.at("target"), {}};
  }
  std::string default_loss() const override { return "cross_entropy"; }
  std::vector<Metric> metrics(const TensorList&, const Batch&, Layers&) const override { return {}; }

 private:
  Change change_, extra_;
};

Subject subject_of(const Change& change, const Change& extra = nullptr) {
  Subject subject = mlp_subject();
  subject.model = [=] { return std::make_shared<ChangingModel>(change, extra); };
  return subject;
}

std::string error_in_a_step(const Layout& layout, const Subject& subject) {
  return run(layout, subject, [&](const Context&, Strategy& strategy) {
    strategy.step({share(subject, strategy.sampling()), 0, true});
  });
}

const Change in_place = [](const at::Tensor& input) {
  at::Tensor same = input;
  return same.relu_();
};
const Change through_a_view = [](const at::Tensor& input) {
  at::Tensor view = input.t().narrow(0, 2, 3);
  view.mul_(2);
  return input;
};

TEST(Recompute, RefusesABlockThatChangesItsInput) {
  for (const Layout& layout : {Layout{"single", ", recompute: blocks", 1}, Layout{"ddp", ", recompute: [blocks.1]", 2},
                               Layout{"fsdp", ", shard: parameters, recompute: blocks", 2},
                               Layout{"pipeline", ", recompute: blocks, micro_batches: 2", 2},
                               Layout{"model_parallel", ", devices: [cores:0, cores:1], recompute: blocks", 1},
                               Layout{"tensor_parallel", ", recompute: blocks", 2}}) {
    for (const Change& change : {in_place, through_a_view}) {
      const std::string error = error_in_a_step(layout, subject_of(change));
      EXPECT_EQ(error.rfind("config: block 1 (blocks.1), forward", 0), 0u) << to_string(layout) << ": " << error;
      EXPECT_NE(error.find("block blocks.1 changes its input 0 ["), std::string::npos) << error;
      EXPECT_NE(error.find("leave blocks.1 out of strategy.recompute"), std::string::npos) << error;
    }
  }
}

// An input that passes through the blocks is changed after all of them: each block's second forward would see the
// change.
TEST(Recompute, RefusesAnInputChangedLater) {
  const Subject subject = subject_of(nullptr, [](const at::Tensor& extra) {
    at::Tensor same = extra;
    return same.add_(1);
  });
  const std::string error = error_in_a_step({"single", ", recompute: [blocks.1]", 1}, subject);
  EXPECT_EQ(error.rfind("config: backward, step 0: input 1 of a recomputed block was changed in place", 0), 0u)
      << error;
  EXPECT_EQ(error_in_a_step({"single", "", 1}, subject), "no error");
}

// A block without checkpointing may do so, while its neighbours are checkpointed.
TEST(Recompute, OtherBlocksMayChangeTheirInput) {
  for (const Change& change : {in_place, through_a_view}) {
    const Trajectory plain = train({"single", "", 1}, subject_of(change), {});
    const Trajectory around = train({"single", ", recompute: [blocks.0, blocks.2]", 1}, subject_of(change), {});
    EXPECT_TRUE(bitwise_equal(around.final, plain.final));
  }
}

}  // namespace
}  // namespace convoy::testing
