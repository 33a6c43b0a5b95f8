// Row tables against `single` with dense ones: same global batches, fp64, AdamW. Most rows of a table are in few batches, so
// that they are behind most of the time.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "strategies/parts/model_part.h"
#include "strategies/parts/row_table.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/torch/model_subjects.h"

namespace convoy::testing {
namespace {

// Batches of four rows: of 21 users and 30 items each touches a few.
constexpr int64_t few = 4;

Subject subject_of(const std::string& name, bool rows) {
  if (name == "ncf") return ranking_subject(rows);
  GptSizes sizes;
  sizes.vocabulary = 40;
  sizes.tied = false;
  sizes.rows = rows;
  return gpt_of(sizes);
}

struct Cell {
  std::string subject, strategy;
  int ranks = 1;
  int every = 1;
  bool clipping = false;
  int64_t rows = few;
  std::string more = "";
};

std::string name_of(const Cell& cell) {
  return cell.subject + "_" + cell.strategy + std::to_string(cell.ranks) + "_every" + std::to_string(cell.every) +
         (cell.clipping ? "_clipped" : "") + "_of" + std::to_string(cell.rows) +
         (cell.more.empty()                                  ? ""
          : cell.more.find("recompute") != std::string::npos ? "_recomputed"
                                                             : "_sliced");
}

Layout layout_of(const Cell& cell) {
  std::string options = ", sync: {every: " + std::to_string(cell.every) + "}" + cell.more;
  if (cell.strategy == "data_parallel") {
    options += ", devices: [cores:0";
    for (int device = 1; device < cell.ranks; ++device) options += ", cores:" + std::to_string(device);
    options += "]";
  }
  return {cell.strategy, options, cell.ranks};
}

Training training_of(const Cell& cell, int64_t steps = 10) {
  Training training = adamw(cell.clipping);
  training.global_rows = cell.rows;
  training.steps = steps;
  return training;
}

Layout reference_of(const Cell& cell) {
  const std::string slices = cell.more.find("micro_batches") != std::string::npos ? ", micro_batches: 3" : "";
  return {"single", ", sync: {every: " + std::to_string(cell.every) + "}" + slices, 1};
}

class RowsTest : public ::testing::TestWithParam<Cell> {};

TEST_P(RowsTest, EqualDenseTables) {
  const Cell cell = GetParam();
  const Trajectory rows = train(layout_of(cell), subject_of(cell.subject, true), training_of(cell));
  const Trajectory dense = train(reference_of(cell), subject_of(cell.subject, false), training_of(cell));
  expect_equal(rows, dense);
}

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const char* subject : {"ncf", "gpt"}) {
    for (const int every : {1, 4})
      for (const bool clipping : {false, true}) {
        all.push_back({subject, "single", 1, every, clipping});
        for (int ranks = 1; ranks <= 3; ++ranks)
          for (const char* strategy : {"data_parallel", "ddp"})
            all.push_back({subject, strategy, ranks, every, clipping});
      }
    // Shares of 6, 5 and 5 rows, and ranks without any.
    all.push_back({subject, "ddp", 3, 1, true, 16});
    all.push_back({subject, "ddp", 3, 1, true, 2});
    for (const char* more : {", recompute: blocks", ", micro_batches: 3"}) {
      all.push_back({subject, "single", 1, 1, true, 8, more});
      all.push_back({subject, "ddp", 2, 2, true, 8, more});
    }
    // Dense gradients on their own way, in buckets.
    all.push_back({subject, "ddp", 2, 1, true, 8, ", overlap: false"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, RowsTest, ::testing::ValuesIn(cells()),
                         [](const auto& info) { return name_of(info.param) + "_" + std::to_string(info.index); });

TEST(Rows, TheWholeWayOnTwoRanks) {
  const Cell cell{"ncf", "ddp", 2, 1, true};
  const Trajectory rows = train(layout_of(cell), subject_of("ncf", true), training_of(cell, 300));
  const Trajectory dense = train(reference_of(cell), subject_of("ncf", false), training_of(cell, 300));
  const Difference worst = difference(rows.final, dense.final);
  EXPECT_LE(worst.worst, tolerance) << worst.key;
  EXPECT_GT(difference(dense.final, dense.initial).worst, 0.1);
}

// With a schedule, and optimizers that have rows of their own kind.
TEST(Rows, OtherOptimizers) {
  for (const char* optimizer :
       {"{name: adam, lr: 3.0e-3, eps: 1.0e-5, schedule: {name: cosine, warmup: 3 steps, final: 0.1}}",
        "{name: sgd, lr: 0.1, momentum: 0.9, nesterov: true}", "{name: sgd, lr: 0.1, weight_decay: 0.1}",
        "{name: adagrad, lr: 0.05, eps: 1.0e-5}",
        "{name: adamw, lr: 3.0e-3, eps: 1.0e-5, groups: [{match: embedding, lr: 1.0e-2, weight_decay: 0.5}]}"}) {
    const Cell cell{"ncf", "ddp", 2, 1, true};
    Training training = training_of(cell, 20);
    training.optimizer = optimizer;
    const Trajectory rows = train(layout_of(cell), subject_of("ncf", true), training);
    const Trajectory dense = train(reference_of(cell), subject_of("ncf", false), training);
    const Difference worst = difference(rows.final, dense.final);
    EXPECT_LE(worst.worst, tolerance) << optimizer << ": " << worst.key;
    EXPECT_GT(difference(dense.final, dense.initial).worst, 1e-3) << optimizer;
  }
}

TEST(Rows, TwoRunsAreBitwiseEqual) {
  const Cell cell{"ncf", "ddp", 3, 1, true};
  const Trajectory first = train(layout_of(cell), subject_of("ncf", true), training_of(cell));
  const Trajectory second = train(layout_of(cell), subject_of("ncf", true), training_of(cell));
  EXPECT_TRUE(bitwise_equal(first.final, second.final));
}

// In fp32 what two ranks hold is the same bit by bit all the same: WholeState checks it.
TEST(Rows, ReplicasStayEqualInFloat) {
  const Cell cell{"ncf", "ddp", 3, 1, true};
  Training training = training_of(cell, 60);
  training.precision = "fp32";
  const Trajectory rows = train(layout_of(cell), subject_of("ncf", true), training);
  EXPECT_GT(difference(rows.final, rows.initial).worst, 1e-2);
}

StepInput batch_at(const Subject& subject, int64_t step, const Sampling& sampling) {
  Subject part = subject;
  const int64_t begin = step % 15 * few;
  part.data = subject.data.slice(begin, begin + few);
  part.data.rows = few;
  StepInput input;
  input.batch = share(part, sampling);
  input.step = step;
  return input;
}

using State = std::map<std::string, at::Tensor>;

// Steps [begin, end) from `start` (empty: the initial values); settled.
State trained(const Layout& layout, const Subject& subject, int64_t begin, int64_t end, const State& start) {
  State result;
  Training training = adamw(true);
  const RunConfig config = test_config(layout, training, subject.section);
  with_ranks(layout, config, [&](const Context& context) {
    const auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    if (!start.empty()) {
      strategy->visit_state([&](const StateEntry& entry) {
        if (entry.kind != StateKind::gradient) at::Tensor(entry.tensor).copy_(start.at(entry.key()));
      });
      strategy->state_restored();
    }
    for (int64_t step = begin; step < end; ++step) {
      strategy->step(batch_at(subject, step, strategy->sampling()));
      if (step == 11) strategy->settle();  // as where a checkpoint is saved
    }
    strategy->settle();
    if (context.rank == 0) result = state_of(*strategy);
  });
  return result;
}

TEST(Rows, AResumedRunIsBitwiseAsOneThatWasNot) {
  for (const Layout& layout : {Layout{"single", "", 1}, Layout{"ddp", "", 2}}) {
    const Subject subject = subject_of("ncf", true);
    const State whole = trained(layout, subject, 0, 30, {});
    const State half = trained(layout, subject, 0, 12, {});
    EXPECT_TRUE(bitwise_equal(trained(layout, subject, 12, 30, half), whole)) << to_string(layout);
    EXPECT_FALSE(bitwise_equal(half, whole));
  }
}

TEST(Rows, CheckpointsOfDenseTablesServeRowsAndTheOtherWayRound) {
  const Layout one{"single", "", 1}, two{"ddp", "", 2};
  const Subject rows = subject_of("ncf", true), dense = subject_of("ncf", false);
  const State reference = trained(one, dense, 0, 30, {});
  const State from_dense = trained(two, rows, 12, 30, trained(one, dense, 0, 12, {}));
  const State from_rows = trained(one, dense, 12, 30, trained(two, rows, 0, 12, {}));
  EXPECT_LE(difference(from_dense, reference).worst, tolerance);
  EXPECT_LE(difference(from_rows, reference).worst, tolerance);
}

// What the tests above rest on: these models' embeddings are tables, and the others' are not.
TEST(Rows, TablesAreWhereTheyWereAskedFor) {
  const auto tables = [](const Subject& subject) {
    size_t found = 0;
    const Layout layout{"single", "", 1};
    const RunConfig config = test_config(layout, adamw(false), subject.section);
    with_ranks(layout, config, [&](const Context& context) {
      PartRequest request;
      request.rows = std::make_shared<RowRule>(config);
      const ModelPart part(context, subject.model(), subject.loss, request);
      found = part.tables().size();
      for (const ParameterPtr& table : part.tables()) EXPECT_TRUE(table->table) << table->name;
      for (const ParameterPtr& other : part.parameters()) EXPECT_FALSE(other->table) << other->name;
    });
    return found;
  };
  EXPECT_EQ(tables(subject_of("ncf", true)), 2u);
  EXPECT_EQ(tables(subject_of("ncf", false)), 0u);
  EXPECT_EQ(tables(subject_of("gpt", true)), 1u);
  GptSizes tied;
  tied.rows = true;
  EXPECT_EQ(tables(gpt_of(tied)), 0u) << "a tied table has a gradient of all rows";
}

// A gpt whose table is tied trains on, dense.
TEST(Rows, TiedTablesStayDense) {
  GptSizes sizes;
  sizes.rows = true;
  const Cell cell{"gpt", "ddp", 2, 1, true};
  const Trajectory asked = train(layout_of(cell), gpt_of(sizes), training_of(cell));
  const Trajectory dense = train(reference_of(cell), gpt_of({}), training_of(cell));
  expect_equal(asked, dense);
}

}  // namespace
}  // namespace convoy::testing
