// Counts of `convoy-rank --describe blocks`, found without running a model, compared with the model.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/communicator.h"
#include "strategies/plans/catalogue.h"
#include "strategies/registry.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/subjects.h"

namespace convoy::testing {
namespace {

int64_t parameters_of(const Subject& subject) {
  int64_t elements = 0;
  const Layout layout{"single", "", 1};
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    const auto strategy = make_strategy(context.config);
    strategy->setup(context, subject.model(), subject.loss);
    strategy->visit_state([&](const StateEntry& entry) {
      if (entry.kind == StateKind::parameter) elements += entry.tensor.numel();
    });
  });
  return elements;
}

TEST(BlockCounts, ParametersMatchTheModel) {
  for (auto* make :
       {gpt_subject, llama_subject, convnet_subject, ncf_subject, classifier_subject, foreign_subject, tied_subject}) {
    const Subject subject = make();
    int64_t counted = 0;
    for (const BlockDescription& block : describe_model(*subject.model(), "fp64").blocks) counted += block.parameters;
    EXPECT_EQ(counted, parameters_of(subject)) << subject.name;
  }
}

TEST(BlockCounts, FindSizesThatATensorGroupDivides) {
  const Subject subject = gpt_of({4, 16, 13});
  const ModelDescription model = describe_model(*subject.model(), "fp32");
  const auto heard = Json(model).get<ModelDescription>();
  const BlockDescription& block = heard.blocks.at(1);
  ASSERT_EQ(block.cuts.size(), 4u);  // queries, keys and values; projection; up; down
  EXPECT_EQ(block.cuts[0].layer, "blocks.0.qkv");
  EXPECT_EQ(block.cuts[0].size, 48);
  EXPECT_EQ(block.cuts[0].parts, 3);
  EXPECT_TRUE(block.cuts[0].outputs);
  EXPECT_FALSE(block.cuts[1].outputs);
  EXPECT_EQ(heard.blocks.at(0).cut_parameters, 13 * 16);  // the embedding of tokens
  EXPECT_LT(block.cut_parameters, block.parameters);      // norms and some biases are whole
  EXPECT_GT(block.cut_parameters, block.parameters / 2);
  EXPECT_EQ(block.cut_product_parameters, block.product_parameters);  // norms and biases are no products
  EXPECT_EQ(heard.blocks.at(0).cut_product_parameters, 0);

  JobPlan job;
  const auto refused = [&](int degree) -> std::string {
    job.mesh = Mesh({{"tensor", degree}});
    try {
      strategy_entry("tensor_parallel").check(job, heard);
    } catch (const ConfigError& error) {
      return error.key() + ": " + error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(refused(1), "nothing");
  EXPECT_EQ(refused(4), "nothing");
  EXPECT_NE(refused(3).find("model: blocks.0.qkv has 48 outputs in 3 parts, which 3 ranks"), std::string::npos)
      << refused(3);
}

// Computed by hand, for sequences of 6 and 24 features in fp64.
TEST(BlockActivations, CountOutputsAndExchangesOfGpt) {
  const Subject subject = gpt_of({12, 24, 12});
  ModelDescription model = describe_model(*subject.model(), "fp64");
  at::set_num_threads(1);
  measure_activations(test_config({"single", "", 1}, {}), subject.model(), subject.loss, subject.data.slice(0, 4),
                      model);
  constexpr int64_t row = 6 * 24 * 8, logits = 6 * 12 * 8;
  const BlockDescription &embedding = model.blocks.at(0), &block = model.blocks.at(1), &output = model.blocks.back();
  EXPECT_EQ(embedding.row_output_bytes, row);
  EXPECT_EQ(embedding.row_cut_output_bytes, row);
  EXPECT_EQ(embedding.cut_exchanges, 1);
  EXPECT_EQ(block.row_output_bytes, row);
  EXPECT_EQ(block.row_cut_input_bytes, 2 * row);
  EXPECT_EQ(block.row_cut_output_bytes, 2 * row);
  EXPECT_EQ(block.cut_exchanges, 4);
  EXPECT_EQ(output.row_cut_input_bytes, row);
  EXPECT_EQ(output.cut_exchanges, 1);
  EXPECT_EQ(output.row_output_bytes, 0);  // counted with the loss
  // Queries, keys, values and the output of attention, and the inner features twice (before and after the activation).
  EXPECT_GE(block.row_cut_saved_bytes, (3 + 1 + 2 * 2) * row);
  EXPECT_GT(block.row_saved_bytes, block.row_cut_saved_bytes + 2 * row);
  EXPECT_LT(block.row_saved_bytes, 40 * row);
  EXPECT_GT(output.row_saved_bytes, logits);
}

// Half-precision copies of weights are counted once, for any number of rows.
TEST(BlockActivations, HalfPrecisionWeightsAreNoActivations) {
  const Subject subject = gpt_of({12, 24, 12});
  at::set_num_threads(1);
  const auto measured = [&](const std::string& precision, int64_t rows) {
    ModelDescription model = describe_model(*subject.model(), precision);
    RunConfig config = test_config({"single", "", 1}, {});
    config.precision = precision;
    measure_activations(config, subject.model(), subject.loss, subject.data.slice(0, rows), model);
    EXPECT_TRUE(model.measured);
    return model.blocks.at(1);
  };
  const BlockDescription few = measured("bf16", 2), more = measured("bf16", 8), whole = measured("fp32", 2);
  EXPECT_GE(few.saved_bytes, 2 * few.product_parameters);
  EXPECT_LT(few.saved_bytes, 3 * few.product_parameters);
  EXPECT_NEAR(static_cast<double>(more.row_saved_bytes) / static_cast<double>(few.row_saved_bytes), 1, 0.02);
  EXPECT_LT(whole.saved_bytes, few.product_parameters / 4);
}

// Fake tensors give the bytes that the real step keeps, and the working memory of its backward.
TEST(BlockActivations, FakeTensorsGiveTheBytesOfAStep) {
  constexpr int64_t rows = 4;
  at::set_num_threads(1);
  for (auto* make :
       {gpt_subject, llama_subject, convnet_subject, ncf_subject, classifier_subject, foreign_subject, tied_subject})
    for (const char* precision : {"fp64", "fp32", "bf16"}) {
      const Subject subject = make();
      const ModelDescription counted = describe_model(*subject.model(), precision);
      const auto measured = [&](MeasuredTensors tensors) {
        ModelDescription model = counted;
        RunConfig config = test_config({"single", "", 1}, {});
        config.precision = precision;
        measure_activations(config, subject.model(), subject.loss, subject.data.slice(0, rows), model, tensors);
        return model;
      };
      const ModelDescription real = measured(MeasuredTensors::real), fake = measured(MeasuredTensors::fake);
      for (size_t index = 0; index < real.blocks.size(); ++index) {
        const BlockDescription &one = fake.blocks[index], &other = real.blocks[index];
        SCOPED_TRACE(convoy::str(subject.name, ", ", precision, ", ", one.name));
        EXPECT_EQ(one.row_output_bytes, other.row_output_bytes);
        EXPECT_EQ(one.row_saved_bytes, other.row_saved_bytes);
        EXPECT_EQ(one.saved_bytes, other.saved_bytes);
        EXPECT_EQ(one.row_cut_saved_bytes, other.row_cut_saved_bytes);
        EXPECT_EQ(one.cut_exchanges, other.cut_exchanges);
        // Kernels of convolutions and of 16-bit types need temporary buffers. On some processors these do not depend on
        // the rows. Then less of the same total is counted per row.
        const bool own_buffers = other.name.rfind("conv", 0) == 0 || std::string(precision) == "bf16";
        const auto working = [rows](const BlockDescription& block) {
          return block.row_working_bytes * rows + block.working_bytes;
        };
        EXPECT_LE(working(one), working(other));
        if (own_buffers) continue;
        EXPECT_EQ(one.row_working_bytes, other.row_working_bytes);
        EXPECT_EQ(one.working_bytes, other.working_bytes);
      }
    }
}

// A model of some terabytes, which is never allocated. Afterwards tensors have values again.
TEST(BlockActivations, ShapesNeedNoMemory) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer leaves too few addresses for the shapes";
#endif
  constexpr int64_t dim = 1 << 18, length = 6;
  const Subject subject = gpt_of({4096, dim, 1 << 18});
  ModelDescription model = describe_model(*subject.model(), "fp32");
  int64_t parameters = 0;
  for (const BlockDescription& block : model.blocks) parameters += block.parameters;
  EXPECT_GT(parameters, int64_t{1} << 39);
  at::set_num_threads(1);
  measure_activations(test_config({"single", "", 1}, {}), subject.model(), subject.loss, subject.data.slice(0, 2),
                      model);
  EXPECT_GT(model.blocks.at(1).row_saved_bytes, 30 * length * dim);
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3);
}

}  // namespace
}  // namespace convoy::testing
