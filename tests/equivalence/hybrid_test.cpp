// hybrid over the axis pipeline, with data axes of both kinds and a tensor axis, against single with the same
// micro-batches: same global batches, fp64, ten AdamW steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/model.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/torch/feature_model.h"

namespace convoy::testing {
namespace {

struct HybridCell {
  std::string subject;
  std::string data;  // as in the configuration
  int data_ranks, pipeline, tensor;
  std::string options;
  int every = 1;
  bool clipping = true;
};

std::string name_of(const HybridCell& cell) {
  std::string name = cell.subject + "_" + cell.data + "_" + std::to_string(cell.data_ranks) + "_" +
                     std::to_string(cell.pipeline) + "_" + std::to_string(cell.tensor) + cell.options + "_every" +
                     std::to_string(cell.every) + (cell.clipping ? "_clipped" : "");
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c) && c != '_'; }), name.end());
  return name;
}

Layout layout_of(const HybridCell& cell) {
  const std::string buckets = cell.data == "2" ? ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006" : "";
  return {"hybrid",
          ", mesh: {data: " + cell.data + ", pipeline: " + std::to_string(cell.pipeline) +
              ", tensor: " + std::to_string(cell.tensor) + "}" + buckets + cell.options + common(cell.every),
          cell.data_ranks * cell.pipeline * cell.tensor};
}

class HybridTest : public ::testing::TestWithParam<HybridCell> {};

TEST_P(HybridTest, EqualsSingle) {
  const HybridCell& cell = GetParam();
  const Trajectory cut = train(layout_of(cell), subject_named(cell.subject), adamw(cell.clipping));
  const Trajectory& whole = reference_of(subject_named(cell.subject), common(cell.every), cell.clipping);
  expect_equal(cut, whole);
}

std::vector<HybridCell> hybrid_cells() {
  std::vector<HybridCell> all;
  const std::string fsdp = "{degree: 2, how: fsdp}";
  for (const std::string subject : {"classifier", "gpt", "llama", "ncf", "convnet"}) {
    const std::string norms = subject == "convnet" ? ", batch_norm: sync" : "";
    for (const int every : {1, 4})
      for (const bool clipping : {false, true}) all.push_back({subject, "2", 2, 2, 1, norms, every, clipping});
    all.push_back({subject, "2", 2, 2, 1, norms + ", schedule: gpipe, recompute: blocks"});
    for (const char* shard : {"optimizer", "gradients", "parameters"})
      for (const int every : {1, 4}) all.push_back({subject, fsdp, 2, 2, 1, norms + ", shard: " + shard, every});
    all.push_back({subject, fsdp, 2, 2, 1, norms + ", shard: parameters, recompute: blocks"});
    all.push_back({subject, fsdp, 2, 2, 1, norms + ", shard: parameters, reshard_after_forward: false"});
  }
  for (const std::string subject : {"classifier", "ranking", "gpt", "llama"}) {
    for (const bool clipping : {false, true}) all.push_back({subject, "1", 1, 2, 2, "", 1, clipping});
    all.push_back({subject, "1", 1, 2, 2, ", recompute: blocks", 4});
  }
  for (const char* subject : {"gpt", "llama"}) all.push_back({subject, "1", 1, 2, 2, ", sequence_parallel: true"});
  all.push_back({"gpt", "1", 1, 4, 1, ", schedule: gpipe"});
  all.push_back({"gpt", "1", 1, 2, 2, ", order: [tensor, data, pipeline]"});
  for (const char* shard : {"optimizer", "gradients", "parameters"})
    all.push_back({"gpt", fsdp, 2, 2, 1, std::string(", schedule: interleaved, shard: ") + shard});
  all.push_back({"gpt", "2", 2, 2, 1, ", schedule: interleaved"});
  all.push_back({"gpt", "2", 2, 2, 2, ""});
  all.push_back({"gpt", fsdp, 2, 2, 2, ", shard: parameters"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, HybridTest, ::testing::ValuesIn(hybrid_cells()),
                         [](const auto& info) { return name_of(info.param); });

using Cut = LinearOptions::Cut;

// Four blocks of one linear layer each. The last is tied to the second; `owner` is the sharding of the second, `user`
// that of the last.
class TiedLinears : public FeatureModel {
 public:
  TiedLinears(Cut owner, Cut user) : owner_(owner), user_(user) {}
  int64_t blocks() const override { return 4; }
  BlockPtr block(int64_t index, Layers& layers) const override {
    struct OneLayer : Block {
      TensorList forward(const TensorList& inputs) override { return {layer->forward(inputs[0]).tanh()}; }
      Layer layer;
    };
    LinearOptions options;
    if (index == 1) options.cut = owner_;
    if (index == 3) options.cut = user_;
    if (index == 1 && owner_ == Cut::column) options.parts = 2;
    if (index == 3) options.tied_to = "blocks.1.linear.weight";
    options.gather = true;
    auto block = std::make_shared<OneLayer>();
    const int64_t in = index == 0 ? 6 : 8;
    block->layer = block->register_module("linear", layers.linear("linear", in, 8, options));
    return block;
  }

 private:
  Cut owner_, user_;
};

Subject tied_linears(Cut owner, Cut user) {
  Subject subject = mlp_subject();
  subject.model = [=] { return std::make_shared<TiedLinears>(owner, user); };
  return subject;
}

// Every sharding of the layer that creates a weight, with every sharding of a tied layer in another block. Plan and
// ranks agree, and accepted combinations train as `single` does.
TEST(Hybrid, TiesLinearLayersForAnySharding) {
  const std::vector<Layout> layouts{
      {"tensor_parallel", "", 2},
      {"hybrid", ", mesh: {pipeline: 2, tensor: 2}" + common(1), 4},
      {"hybrid", ", mesh: {data: {degree: 2, how: fsdp}, tensor: 2}" + common(1), 4},
      {"pipeline", common(1), 2},
      {"fsdp", ", shard: parameters", 2},
  };
  Training training = adamw(true);
  training.steps = 3;
  for (const Cut owner : {Cut::none, Cut::column, Cut::row}) {
    for (const Cut user : {Cut::none, Cut::column, Cut::row}) {
      const Subject subject = tied_linears(owner, user);
      const Trajectory single = train({"single", common(1), 1}, subject, training);
      for (const Layout& layout : layouts) {
        SCOPED_TRACE(
            convoy::str("owner ", static_cast<int>(owner), ", user ", static_cast<int>(user), ", ", to_string(layout)));
        const bool cuts = to_string(layout).find("tensor") != std::string::npos;
        // A shard of the inputs cannot be used as a shard of the outputs.
        const bool refused = cuts && owner == Cut::column && user == Cut::row;
        EXPECT_EQ(refused_key(layout, subject, {}), refused ? "model" : "nothing is refused");
        if (refused)
          EXPECT_EQ(run(layout, subject, [](const Context&, Strategy&) {}).substr(0, 7), "config:");
        else
          expect_equal(train(layout, subject, training), single);
      }
    }
  }
}

// Combinations that the table leaves out, with the key of the error.
TEST(Hybrid, RefusesUnsupportedCombinations) {
  const auto refusal = [](const std::string& options, int ranks) {
    return refused_key({"hybrid", options + common(1), ranks}, gpt_subject(), {});
  };
  EXPECT_EQ(refusal(", mesh: {data: 2, pipeline: 2, tensor: 1}", 3), "strategy.mesh");
  EXPECT_EQ(refusal(", mesh: {pipeline: 5}", 5), "strategy.mesh.pipeline");
  EXPECT_EQ(refusal(", mesh: {pipeline: 2}, stages: [1, 1, 2]", 2), "strategy.stages");
  EXPECT_EQ(refusal(", mesh: {pipeline: 2}, virtual: 2", 2), "strategy.virtual");
  EXPECT_EQ(refusal(", mesh: {pipeline: 2}, virtual: 3, schedule: interleaved", 2), "strategy.virtual");
  EXPECT_EQ(
      refusal(", mesh: {data: {degree: 2, how: fsdp}, pipeline: 2}, schedule: interleaved, stages: [1, 2, 0-1]", 4),
      "strategy.stages.0");
  EXPECT_EQ(refusal(", mesh: {tensor: 3}", 3), "model.heads");
  // Keys of a missing axis.
  EXPECT_EQ(refusal(", mesh: {data: 2, pipeline: 2}, shard: gradients", 4), "strategy.shard");
  EXPECT_EQ(refusal(", mesh: {data: {degree: 2, how: fsdp}}, bucket_cap_mb: 1", 2), "strategy.bucket_cap_mb");
  EXPECT_EQ(refusal(", mesh: {data: 2}, schedule: gpipe", 2), "strategy.schedule");
  EXPECT_EQ(refusal(", mesh: {data: 2}, sequence_parallel: true", 2), "strategy.sequence_parallel");
  EXPECT_EQ(
      refused_key({"hybrid", ", mesh: {data: {degree: 2, how: fsdp}}, sync: {what: diloco}", 2}, gpt_subject(), {}),
      "strategy.sync.what");
}

TEST(Hybrid, TwoRunsAreBitwiseEqual) {
  for (const char* data : {"2", "{degree: 2, how: fsdp}"}) {
    const HybridCell cell{"gpt", data, 2, 2, 1, ""};
    const Trajectory first = train(layout_of(cell), gpt_subject(), adamw(cell.clipping));
    const Trajectory second = train(layout_of(cell), gpt_subject(), adamw(cell.clipping));
    EXPECT_TRUE(bitwise_equal(first.final, second.final)) << data;
    EXPECT_EQ(first.losses, second.losses) << data;
  }
}

}  // namespace
}  // namespace convoy::testing
