// Sparse embeddings against `single` with dense ones: same global batches, fp64, AdamW. Most rows of a table are in few
// batches, so they are stale most of the time.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/base/error.h"
#include "core/optim/optimizer.h"
#include "core/optim/rows/row_optimizer.h"
#include "strategies/common/model/model_part.h"
#include "strategies/sparse/sparse_embedding.h"
#include "tests/equivalence/expectations.h"
#include "tests/support/torch/model_subjects.h"
#include "tests/support/torch/state_view.h"
#include "tests/support/torch/whole_state.h"

namespace convoy::testing {
namespace {

// Batches of four rows, which touch few of the 21 users and 30 items.
constexpr int64_t few = 4;

Subject subject_of(const std::string& name, bool rows, bool sharded = false) {
  // The options that the strategy reads; the model itself has sparse embeddings in both cases.
  const std::string section = sharded ? "{name: " + name + ", rows: sharded}" : "{name: net}";
  if (name == "ncf") {
    Subject ranking = ranking_subject(rows);
    ranking.section = section;
    return ranking;
  }
  GptSizes sizes;
  sizes.vocabulary = 40;
  sizes.tied = false;
  sizes.rows = rows;
  Subject gpt = gpt_of(sizes);
  if (sharded) gpt.section = section;
  return gpt;
}

struct RowsCell {
  std::string subject, strategy;
  int ranks = 1;
  int every = 1;
  bool clipping = false;
  int64_t rows = few;
  std::string more = "";
  bool sharded = false;
};

std::string name_of(const RowsCell& cell) {
  return cell.subject + "_" + (cell.sharded ? "sharded_" : "") + cell.strategy + std::to_string(cell.ranks) + "_every" +
         std::to_string(cell.every) + (cell.clipping ? "_clipped" : "") + "_of" + std::to_string(cell.rows) +
         (cell.more.empty()                                  ? ""
          : cell.more.find("recompute") != std::string::npos ? "_recomputed"
                                                             : "_sliced");
}

Layout layout_of(const RowsCell& cell) {
  std::string options = ", sync: {every: " + std::to_string(cell.every) + "}" + cell.more;
  if (cell.strategy == "data_parallel") {
    options += ", devices: [cores:0";
    for (int device = 1; device < cell.ranks; ++device) options += ", cores:" + std::to_string(device);
    options += "]";
  }
  return {cell.strategy, options, cell.ranks};
}

Training training_of(const RowsCell& cell, int64_t steps = 10) {
  Training training = adamw(cell.clipping);
  training.global_rows = cell.rows;
  training.steps = steps;
  return training;
}

Layout reference_of(const RowsCell& cell) {
  const std::string slices = cell.more.find("micro_batches") != std::string::npos ? ", micro_batches: 3" : "";
  return {"single", ", sync: {every: " + std::to_string(cell.every) + "}" + slices, 1};
}

class RowsTest : public ::testing::TestWithParam<RowsCell> {};

TEST_P(RowsTest, EqualDenseTables) {
  const RowsCell cell = GetParam();
  const Trajectory rows = train(layout_of(cell), subject_of(cell.subject, true, cell.sharded), training_of(cell));
  const Trajectory dense = train(reference_of(cell), subject_of(cell.subject, false), training_of(cell));
  expect_equal(rows, dense);
}

// Rows sharded over ranks.
void add_sharded(const std::string& subject, std::vector<RowsCell>& all) {
  for (const int every : {1, 4})
    for (const bool clipping : {false, true})
      for (int ranks = 2; ranks <= 4; ++ranks) all.push_back({subject, "ddp", ranks, every, clipping, few, "", true});
  all.push_back({subject, "data_parallel", 2, 1, true, few, "", true});
  all.push_back({subject, "ddp", 1, 1, true, few, "", true});
  // Uneven shares, ranks without rows, several micro-batches, checkpointed blocks.
  all.push_back({subject, "ddp", 3, 1, true, 16, "", true});
  all.push_back({subject, "ddp", 3, 1, true, 2, "", true});
  all.push_back({subject, "ddp", 4, 2, true, 2, "", true});
  all.push_back({subject, "ddp", 2, 2, true, 8, ", micro_batches: 3", true});
  all.push_back({subject, "ddp", 2, 1, true, 8, ", recompute: blocks", true});
}

std::vector<RowsCell> rows_cells() {
  std::vector<RowsCell> all;
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
    // Dense gradients in separate messages, in buckets.
    all.push_back({subject, "ddp", 2, 1, true, 8, ", overlap: false"});
    add_sharded(subject, all);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, RowsTest, ::testing::ValuesIn(rows_cells()),
                         [](const auto& info) { return name_of(info.param) + "_" + std::to_string(info.index); });

TEST(Rows, MatchDenseTablesInALongRun) {
  const RowsCell cell{"ncf", "ddp", 2, 1, true};
  const Trajectory dense = train(reference_of(cell), subject_of("ncf", false), training_of(cell, 300));
  EXPECT_GT(difference(dense.final, dense.initial).worst, 0.1);
  for (const bool sharded : {false, true}) {
    const Trajectory rows = train(layout_of(cell), subject_of("ncf", true, sharded), training_of(cell, 300));
    const Difference worst = difference(rows.final, dense.final);
    EXPECT_LE(worst.worst, tolerance) << worst.key << (sharded ? ", sharded" : "");
  }
}

// With a schedule, and with the other row optimizers.
TEST(Rows, SupportOtherOptimizers) {
  for (const char* optimizer :
       {"{name: adam, lr: 3.0e-3, eps: 1.0e-5, schedule: {name: cosine, warmup: 3 steps, final: 0.1}}",
        "{name: sgd, lr: 0.1, momentum: 0.9, nesterov: true}", "{name: sgd, lr: 0.1, weight_decay: 0.1}",
        "{name: adagrad, lr: 0.05, eps: 1.0e-5}",
        "{name: adamw, lr: 3.0e-3, eps: 1.0e-5, groups: [{match: embedding, lr: 1.0e-2, weight_decay: 0.5}]}"}) {
    const RowsCell cell{"ncf", "ddp", 2, 1, true};
    Training training = training_of(cell, 20);
    training.optimizer = optimizer;
    const Trajectory dense = train(reference_of(cell), subject_of("ncf", false), training);
    for (const bool sharded : {false, true}) {
      const Trajectory rows = train(layout_of(cell), subject_of("ncf", true, sharded), training);
      const Difference worst = difference(rows.final, dense.final);
      EXPECT_LE(worst.worst, tolerance) << optimizer << ": " << worst.key << (sharded ? ", sharded" : "");
    }
    EXPECT_GT(difference(dense.final, dense.initial).worst, 1e-3) << optimizer;
  }
}

TEST(Rows, TwoRunsAreBitwiseEqual) {
  const RowsCell cell{"ncf", "ddp", 3, 1, true};
  for (const bool sharded : {false, true}) {
    const Trajectory first = train(layout_of(cell), subject_of("ncf", true, sharded), training_of(cell));
    const Trajectory second = train(layout_of(cell), subject_of("ncf", true, sharded), training_of(cell));
    EXPECT_TRUE(bitwise_equal(first.final, second.final));
  }
}

// In fp32 the state of two ranks is also equal bit by bit: WholeState checks it.
TEST(Rows, ReplicasStayEqualInFloat) {
  const RowsCell cell{"ncf", "ddp", 3, 1, true};
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

// Steps [begin, end) from `start` (empty: the initial values); flushed. `evaluate_every`: 0 for never.
State trained(const Layout& layout, const Subject& subject, int64_t begin, int64_t end, const State& start,
              int64_t evaluate_every = 0, const std::string& more = "") {
  WholeState result;
  Training training = adamw(true);
  training.optimizer.insert(training.optimizer.size() - 1, more);
  const RunConfig config = test_config(layout, training, subject.section);
  with_ranks(layout, config, [&](const Context& context) {
    const auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    if (!start.empty()) {
      strategy->visit_state([&](const StateEntry& entry) {
        at::Tensor(entry.tensor).copy_(piece_of(start.at(entry.key()), entry.piece));
      });
      strategy->state_restored();
    }
    for (int64_t step = begin; step < end; ++step) {
      strategy->step(batch_at(subject, step, strategy->sampling()));
      if (step == 11) strategy->flush();  // as where a checkpoint is saved
      if (evaluate_every == 0 || step % evaluate_every != 0) continue;
      strategy->flush_for_evaluation();
      strategy->evaluate(batch_at(subject, step + 1, strategy->sampling()).batch);
      context.world->barrier({"evaluated", {}})->wait();
    }
    strategy->flush();
    strategy->visit_state([&](const StateEntry& entry) { result.add(entry); });
  });
  return result.tensors();
}

TEST(Rows, AResumedRunEqualsAnUninterruptedRun) {
  for (const auto& [layout, sharded] :
       {std::pair{Layout{"single", "", 1}, false}, std::pair{Layout{"ddp", "", 2}, false},
        std::pair{Layout{"ddp", "", 3}, true}, std::pair{Layout{"ddp", ", sync: {compress: bf16}", 2}, false},
        std::pair{Layout{"ddp", ", sync: {compress: fp16}", 3}, true}}) {
    const Subject subject = subject_of("ncf", true, sharded);
    const State whole = trained(layout, subject, 0, 30, {});
    const State half = trained(layout, subject, 0, 12, {});
    EXPECT_TRUE(bitwise_equal(trained(layout, subject, 12, 30, half), whole)) << to_string(layout);
    EXPECT_FALSE(bitwise_equal(half, whole));
  }
}

// Look-ups apply missed updates without writing; a catch-up in closed form at other steps would give other digits.
TEST(Rows, EvaluationsChangeNoResult) {
  for (const auto& [layout, sharded] :
       {std::pair{Layout{"single", "", 1}, false}, std::pair{Layout{"ddp", "", 2}, false},
        std::pair{Layout{"ddp", "", 3}, true}}) {
    const Subject subject = subject_of("ncf", true, sharded);
    const State never = trained(layout, subject, 0, 30, {}, 0, ", catch_up: closed");
    EXPECT_TRUE(bitwise_equal(trained(layout, subject, 0, 30, {}, 4, ", catch_up: closed"), never))
        << to_string(layout);
    EXPECT_FALSE(bitwise_equal(trained(layout, subject, 0, 30, {}, 0, ", catch_up: exact"), never));
  }
}

// An evaluation sees the values of a flushed table.
TEST(Rows, EvaluationsSeeCurrentRows) {
  const Subject subject = subject_of("ncf", true);
  const Layout layout{"single", "", 1};
  const RunConfig config = test_config(layout, adamw(true), subject.section);
  with_ranks(layout, config, [&](const Context& context) {
    const auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    for (int64_t step = 0; step < 9; ++step) strategy->step(batch_at(subject, step, strategy->sampling()));
    strategy->flush_for_evaluation();
    const auto loss = [&] {
      const Metric metric = strategy->evaluate(batch_at(subject, 12, strategy->sampling()).batch).front();
      return (metric.sum / metric.weight).item<double>();
    };
    const double behind = loss();
    bool any = false;
    strategy->visit_state([&](const StateEntry& entry) { any = any || entry.stale; });
    EXPECT_TRUE(any);
    strategy->flush();
    EXPECT_EQ(loss(), behind);
    strategy->visit_state([&](const StateEntry& entry) { EXPECT_FALSE(entry.stale) << entry.key(); });
  });
}

// Dense gradients of the two tables in each step of a real training.
std::vector<State> recorded_gradients(int64_t steps) {
  const Subject subject = subject_of("ncf", false);
  const Layout layout{"single", "", 1};
  Training training = adamw(false);
  training.precision = "fp32";
  const RunConfig config = test_config(layout, training, subject.section);
  std::vector<State> all;
  with_ranks(layout, config, [&](const Context& context) {
    const auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    for (int64_t step = 0; step < steps; ++step) {
      strategy->step(batch_at(subject, step, strategy->sampling()));
      all.emplace_back();
      strategy->visit_gradients([&](const StateEntry& entry) {
        if (entry.name.rfind("embedding.", 0) == 0) all.back()[entry.name] = entry.tensor.clone();
      });
    }
  });
  return all;
}

// fp32 and the default eps, as in practice: the closed form on gradients of a real training, compared with dense Adam
// on the same gradients. The difference is within 5e-3 of each table's change.
TEST(Rows, ClosedFormStaysNearDenseAdam) {
  const Component adam{"adam", Options(Json{{"lr", 3e-3},
                                            {"weight_decay", 0.0},
                                            {"groups", Json::array()},
                                            {"betas", {0.9, 0.999}},
                                            {"eps", 1e-8},
                                            {"lazy", false},
                                            {"catch_up", "auto"}})};
  const std::vector<State> recorded = recorded_gradients(300);
  ASSERT_EQ(recorded.front().size(), 2u);
  for (const auto& [name, first] : recorded.front()) {
    ASSERT_EQ(first.scalar_type(), at::kFloat);
    const at::Tensor start = at::ones_like(first);
    at::Tensor dense = start.clone(), by_rows = start.clone();
    const auto whole = make_optimizer(adam);
    const auto rows = make_row_optimizer(adam);
    whole->add_slot(dense.view({-1}), {});
    rows->add_table(by_rows, {});
    for (size_t step = 0; step < recorded.size(); ++step) {
      const UpdateScalars scalars{at::full({1}, 3e-3, at::kDouble), at::full({1}, int64_t(step) + 1, at::kLong),
                                  at::ones({1}, at::kDouble), at::ones({1}, at::kBool)};
      const at::Tensor gradient = recorded[step].at(name);
      whole->update(0, {gradient.reshape({-1}).clone(), {}, {}}, scalars);
      const at::Tensor touched = gradient.ne(0).any(1).nonzero().view({-1});
      rows->update(0, touched, gradient.index_select(0, touched), scalars);
      EXPECT_LT(touched.numel(), gradient.size(0)) << "all rows are touched: nothing to make up for";
    }
    rows->flush(0);
    const double moved = (dense - start).abs().max().item<double>();
    EXPECT_GT(moved, 0.01) << name;
    EXPECT_LE((by_rows - dense).abs().max().item<double>(), 5e-3 * moved) << name;
    EXPECT_GT((by_rows - dense).abs().max().item<double>(), 0) << name << ": replayed step by step";
  }
}

TEST(Rows, SparseAndDenseRunsReadEachOthersCheckpoints) {
  const Layout one{"single", "", 1}, two{"ddp", "", 2}, three{"ddp", "", 3};
  const Subject rows = subject_of("ncf", true), dense = subject_of("ncf", false),
                sharded = subject_of("ncf", true, true);
  const State reference = trained(one, dense, 0, 30, {});
  const State from_dense = trained(two, rows, 12, 30, trained(one, dense, 0, 12, {}));
  const State from_rows = trained(one, dense, 12, 30, trained(two, rows, 0, 12, {}));
  EXPECT_LE(difference(from_dense, reference).worst, tolerance);
  EXPECT_LE(difference(from_rows, reference).worst, tolerance);
  // Sharded over two ranks, then over three, then not sharded.
  const State dealt = trained(two, sharded, 6, 12, trained(one, dense, 0, 6, {}));
  const State again = trained(three, sharded, 12, 20, dealt);
  EXPECT_LE(difference(trained(two, rows, 20, 30, again), reference).worst, tolerance);
}

// A rank keeps its share of each table and of its moments, as even as a block allows.
TEST(Rows, ShardingOverTwoRanksHalvesMemory) {
  const Subject subject = subject_of("ncf", true, true);
  const Layout layout{"ddp", "", 2};
  const RunConfig config = test_config(layout, adamw(false), subject.section);
  std::mutex mutex;
  std::vector<int64_t> rows;
  with_ranks(layout, config, [&](const Context& context) {
    const auto strategy = make_strategy(config);
    strategy->setup(context, subject.model(), subject.loss);
    int64_t held = 0, moments = 0;
    strategy->visit_state([&](const StateEntry& entry) {
      if (entry.name.rfind("embedding.", 0) != 0) return;
      EXPECT_TRUE(entry.owner) << entry.key();
      (entry.kind == StateKind::parameter ? held : moments) += entry.tensor.size(0);
    });
    EXPECT_EQ(moments, 2 * held);
    std::lock_guard<std::mutex> lock(mutex);
    rows.push_back(held);
  });
  EXPECT_EQ(rows[0] + rows[1], 21 + 30);
  EXPECT_LE(std::abs(rows[0] - rows[1]), 2);
}

// With fewer rows than ranks, some ranks flush no row of a shared table, and hold no row of a sharded one.
TEST(Rows, SupportTablesWithFewerRowsThanRanks) {
  for (const int64_t users : {1, 2, 3}) {
    const State dense = trained({"single", "", 1}, ranking_subject(false, users), 0, 14, {});
    for (const bool sharded : {false, true})
      for (const Layout& layout : {Layout{"ddp", "", 3}, Layout{"ddp", "", 5},
                                   Layout{"data_parallel", ", devices: [cores:0, cores:1, cores:2, cores:3]", 4}}) {
        Subject subject = ranking_subject(true, users);
        if (sharded) subject.section = "{name: ncf, rows: sharded}";
        const Difference worst = difference(trained(layout, subject, 0, 14, {}), dense);
        EXPECT_LE(worst.worst, tolerance)
            << worst.key << ", " << users << " users, " << to_string(layout) << (sharded ? ", sharded" : "");
      }
  }
}

TEST(Rows, RefuseShardingOfTiedTables) {
  GptSizes sizes;
  sizes.rows = true;
  Subject tied = gpt_of(sizes);
  tied.section = "{name: gpt, rows: sharded}";
  const RowsCell cell{"gpt", "ddp", 2, 1, true};
  try {
    train(layout_of(cell), tied, training_of(cell));
    ADD_FAILURE() << "nothing is refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_NE(std::string(error.what()).find("tied"), std::string::npos) << error.what();
  }
}

// The tests above assume this: the embeddings of these models are sparse, and those of the others are not.
TEST(Rows, PlaceTablesAsConfigured) {
  const auto tables = [](const Subject& subject) {
    size_t found = 0;
    const Layout layout{"single", "", 1};
    const RunConfig config = test_config(layout, adamw(false), subject.section);
    with_ranks(layout, config, [&](const Context& context) {
      PartRequest request;
      request.rows = make_sparse_rule(config, 1);
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

// A gpt with a tied table trains with dense gradients.
TEST(Rows, TiedTablesStayDense) {
  GptSizes sizes;
  sizes.rows = true;
  const RowsCell cell{"gpt", "ddp", 2, 1, true};
  const Trajectory asked = train(layout_of(cell), gpt_of(sizes), training_of(cell));
  const Trajectory dense = train(reference_of(cell), gpt_of({}), training_of(cell));
  expect_equal(asked, dense);
}

}  // namespace
}  // namespace convoy::testing
