// tensor_parallel, and hybrid of data and tensor axes, against single: same global batches, fp64, ten AdamW steps.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/errors.h"

namespace convoy::testing {
namespace {

Subject wide_heads() { return gpt_of({12, 24, 12}); }  // heads for 1, 2, 3, 4 ranks
Subject odd_tokens() { return gpt_of({4, 16, 13}); }   // a vocabulary that no number of ranks divides

struct Model {
  const char* name;
  Subject (*make)();
};
const Model models[] = {{"classifier", classifier_subject}, {"ranking", ranking_subject}, {"gpt", wide_heads},
                        {"llama", llama_subject},           {"odd", odd_tokens},          {"tied", tied_subject},
                        {"pairs", pairs_subject},           {"norms", norms_subject},     {"convnet", convnet_subject}};

struct TensorCell {
  const char* model;
  int data, tensor;
  bool clipping = false;
  bool shares = false;  // sequence_parallel
  int every = 1;
};

std::string name_of(const TensorCell& cell) {
  std::string name = std::string(cell.model) + "_data" + std::to_string(cell.data) + "_tensor" +
                     std::to_string(cell.tensor) + "_every" + std::to_string(cell.every);
  return name + (cell.shares ? "_shares" : "") + (cell.clipping ? "_clipped" : "");
}

Subject subject_of(const TensorCell& cell) {
  for (const Model& model : models)
    if (std::string(model.name) == cell.model) return model.make();
  throw std::logic_error(cell.model);
}

Layout layout_of(const TensorCell& cell) {
  const std::string options =
      ", sync: {every: " + std::to_string(cell.every) + "}, sequence_parallel: " + (cell.shares ? "true" : "false");
  if (cell.data == 1) return {"tensor_parallel", options, cell.tensor};
  return {"hybrid",
          options + ", first_bucket_mb: 0.0002, bucket_cap_mb: 0.0006, mesh: {data: " + std::to_string(cell.data) +
              ", tensor: " + std::to_string(cell.tensor) + "}",
          cell.data * cell.tensor};
}

class TensorTest : public ::testing::TestWithParam<TensorCell> {};

TEST_P(TensorTest, EqualsSingle) {
  const TensorCell cell = GetParam();
  const Subject subject = subject_of(cell);
  const Training training = adamw(cell.clipping);
  const Trajectory cut = train(layout_of(cell), subject, training);
  const Trajectory whole =
      train({"single", ", sync: {every: " + std::to_string(cell.every) + "}", 1}, subject, training);

  expect_equal(cut, whole);
}

std::vector<TensorCell> tensor_cells() {
  std::vector<TensorCell> all;
  const std::pair<int, int> meshes[] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}};
  for (const char* model : {"classifier", "ranking", "gpt", "tied", "pairs"})
    for (const auto& [data, tensor] : meshes)
      for (bool clipping : {false, true}) all.push_back({model, data, tensor, clipping});
  for (int tensor : {2, 4}) all.push_back({"odd", 1, tensor, true});
  for (int tensor : {2, 3}) all.push_back({"gpt", 1, tensor, true, true});  // T = 6
  all.push_back({"gpt", 2, 2, true, true});
  for (const auto& [data, tensor] : {std::pair{1, 2}, std::pair{2, 2}})
    for (bool sequence : {false, true}) all.push_back({"llama", data, tensor, true, sequence});
  all.push_back({"classifier", 1, 2, false, true});  // without sequences there is nothing to shard
  for (const char* model : {"classifier", "gpt"}) all.push_back({model, 2, 2, true, false, 4});
  // Layers that are not sharded: batch norm, convolutions, and dropout between them.
  for (const char* model : {"norms", "convnet"}) all.push_back({model, 1, 2, true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, TensorTest, ::testing::ValuesIn(tensor_cells()),
                         [](const auto& info) { return name_of(info.param); });

// Impossible cells: refused with the reason before the start, or when the layers are created.
TEST(Tensor, RefusesUnsupportedCombinations) {
  const TensorCell heads{"odd", 1, 3};  // four of them
  EXPECT_EQ(refused_key(layout_of(heads), subject_of(heads), {}), "model.heads");
  // A user's model has no such option; its layers show the size.
  Subject own = subject_of(heads);
  own.section = "{name: net}";
  EXPECT_EQ(refused_key(layout_of(heads), own, {}), "model");
  const TensorCell uneven{"gpt", 1, 4, false, true};
  const std::string sequence = error_of([&] { train(layout_of(uneven), subject_of(uneven), adamw(uneven.clipping)); });
  EXPECT_NE(sequence.find("sequences of 6, which 4 ranks"), std::string::npos) << sequence;
}

TEST(Tensor, TwoRunsAreBitwiseEqual) {
  for (const TensorCell& cell : {TensorCell{"gpt", 1, 3, true}, TensorCell{"gpt", 2, 2, true, true}}) {
    const Trajectory first = train(layout_of(cell), subject_of(cell), adamw(cell.clipping));
    const Trajectory second = train(layout_of(cell), subject_of(cell), adamw(cell.clipping));
    EXPECT_TRUE(bitwise_equal(first.final, second.final)) << name_of(cell);
    EXPECT_EQ(first.losses, second.losses) << name_of(cell);
  }
}

// Compares everything except the norm, which is summed in a different order, and therefore clipping.
TEST(Tensor, AGroupOfOneEqualsSingleBitForBit) {
  for (const char* name : {"gpt", "classifier"}) {
    const TensorCell cell{name, 1, 1};
    const Trajectory one = train(layout_of(cell), subject_of(cell), adamw(cell.clipping));
    const Trajectory single = train({"single", "", 1}, subject_of(cell), adamw(cell.clipping));
    EXPECT_TRUE(bitwise_equal(one.final, single.final)) << name;
    EXPECT_EQ(one.losses, single.losses) << name;
  }
}

TEST(Tensor, TheOrderOfAxesChangesNothing) {
  const TensorCell cell{"gpt", 2, 2, true};
  const Trajectory near = train(layout_of(cell), subject_of(cell), adamw(cell.clipping));
  Layout layout = layout_of(cell);
  layout.options += ", order: [tensor, pipeline, data]";
  const Trajectory far = train(layout, subject_of(cell), adamw(cell.clipping));
  EXPECT_TRUE(bitwise_equal(near.final, far.final));
}

}  // namespace
}  // namespace convoy::testing
