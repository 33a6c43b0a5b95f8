// Checkpoints of every layout, loaded by every layout: equal parameters, moments, buffers and counters, bit for bit,
// and ten more steps that equal those of the saver, in fp64.
//
// All layouts train `ncf`. Only its tables can be sharded over the ranks of ddp; all other layouts also train `gpt`,
// with a tied table and fused products. This file is the test `checkpoint_matrix` of ctest.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <tuple>

#include "core/checkpoint/checkpoint.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch/whole_state.h"

namespace convoy::testing {
namespace {

constexpr int64_t saved_step = 7, more_steps = 10;  // the save is in the middle of the second epoch

struct MatrixLayout {
  std::string name, strategy, options;
  int ranks = 1;
  bool sharded_tables = false;
};

void PrintTo(const MatrixLayout& layout, std::ostream* out) { *out << layout.name; }

std::vector<MatrixLayout> matrix_layouts() {
  return {
      {"single", "single", ""},
      {"ddp2", "ddp", "", 2},
      {"ddp2_sharded_tables", "ddp", "", 2, true},
      {"fsdp2", "fsdp", "", 2},
      {"fsdp4", "fsdp", "", 4},
      {"tensor_parallel2", "tensor_parallel", "", 2},
      {"pipeline2", "pipeline", "", 2},
      {"hybrid_data2_pipeline2", "hybrid", ", mesh: {data: 2, pipeline: 2}", 4},
      {"hybrid_shards2_tensor2", "hybrid", ", mesh: {data: {degree: 2, how: fsdp}, tensor: 2}", 4},
  };
}

Subject subject_for(const std::string& model, const MatrixLayout& layout) {
  if (model == "gpt") return gpt_subject();
  Subject ncf = ranking_subject(layout.sharded_tables);
  if (layout.sharded_tables) ncf.section = "{name: ncf, rows: sharded}";
  return ncf;
}

Layout layout_of(const MatrixLayout& layout) { return {layout.strategy, layout.options + common(1), layout.ranks}; }

using State = std::map<std::string, at::Tensor>;

// A training with a save before batch `saved_step`, which continues.
struct Saver {
  TemporaryFolder folder;
  State saved;
  Trajectory rest;
};

Training training_until_end() {
  Training training = adamw(true);
  training.steps = saved_step + more_steps;
  return training;
}

const Saver& saver_of(const std::string& model, const MatrixLayout& layout) {
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<Saver>> known;
  std::unique_ptr<Saver>& saver = known[{model, layout.name}];
  if (saver) return *saver;
  saver = std::make_unique<Saver>();
  WholeState whole;
  Training training = training_until_end();
  training.before = [&](const Context& context, Strategy& strategy, int64_t step) {
    if (step != saved_step) return;
    strategy.flush_and_copy(INT64_MAX);
    Checkpoints checkpoints(context, saver->folder.path(), 1);
    const Json trainer{
        {"step", saved_step}, {"rows", 16 * saved_step}, {"train_seconds", 1}, {"metrics", Json::object()}};
    checkpoints.save_in_background(strategy, {saved_step, trainer}, INT64_MAX);
    checkpoints.wait_for_background();
    strategy.visit_state([&](const StateEntry& entry) { whole.add(entry); });
  };
  saver->rest = train(layout_of(layout), subject_for(model, layout), training);
  saver->saved = whole.tensors();
  return *saver;
}

using MatrixCell = std::tuple<std::string, MatrixLayout, MatrixLayout>;  // model, saver, loader

class CheckpointMatrix : public ::testing::TestWithParam<MatrixCell> {};

TEST_P(CheckpointMatrix, LoadsAndContinues) {
  const auto& [model, saves, loads] = GetParam();
  const Saver& saver = saver_of(model, saves);
  // Otherwise an empty load would pass.
  EXPECT_GT(difference(saver.saved, saver.rest.initial).worst, 3e-3);

  WholeState whole;
  Training training = training_until_end();
  training.first = saved_step;
  training.before = [&](const Context& context, Strategy& strategy, int64_t step) {
    if (step != saved_step) return;
    Checkpoints checkpoints(context, saver.folder.path(), 1);
    const auto info = checkpoints.newest();
    ASSERT_TRUE(info.has_value());
    ASSERT_EQ(info->step, saved_step);
    checkpoints.load(strategy, *info);
    strategy.state_restored();
    strategy.visit_state([&](const StateEntry& entry) { whole.add(entry); });
  };
  const Trajectory continued = train(layout_of(loads), subject_for(model, loads), training);
  const State loaded = whole.tensors();
  EXPECT_TRUE(bitwise_equal(loaded, saver.saved)) << difference(loaded, saver.saved).key;

  const Difference worst = difference(continued.final, saver.rest.final);
  EXPECT_LE(worst.worst, tolerance) << worst.key;
  ASSERT_EQ(continued.losses.size(), size_t(more_steps));
  ASSERT_EQ(continued.norms.size(), size_t(more_steps));
  for (size_t i = 0; i < size_t(more_steps); ++i) {
    EXPECT_NEAR(continued.losses[i], saver.rest.losses[saved_step + i], tolerance * 10) << "step " << saved_step + i;
    EXPECT_NEAR(continued.norms[i] / saver.rest.norms[saved_step + i], 1, tolerance * 10) << "step " << saved_step + i;
  }
  EXPECT_GT(difference(continued.final, loaded).worst, 3e-3) << "ten steps changed nothing";
}

std::vector<MatrixCell> matrix_cells() {
  std::vector<MatrixCell> cells;
  for (const char* model : {"ncf", "gpt"})
    for (const MatrixLayout& saves : matrix_layouts())
      for (const MatrixLayout& loads : matrix_layouts())
        if (std::string(model) == "ncf" || (!saves.sharded_tables && !loads.sharded_tables))
          cells.emplace_back(model, saves, loads);
  return cells;
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointMatrix, ::testing::ValuesIn(matrix_cells()), [](const auto& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).name + "_to_" + std::get<2>(info.param).name;
});

}  // namespace
}  // namespace convoy::testing
