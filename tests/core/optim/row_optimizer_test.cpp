// Row optimizers compared with the dense ones of their names, which get a zero gradient for rows without one.
#include "core/optim/rows/row_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/optim/catalogue/catalogue.h"
#include "core/optim/rows/row_base.h"
#include "core/tensors/random.h"
#include "tests/core/optim/optimizers.h"

namespace convoy {
namespace {

constexpr int64_t rows = 211, width = 19;  // no multiple of a vector

Component adagrad() {
  Json json = common();
  json["eps"] = 1e-10;
  return {"adagrad", Options(json)};
}

at::Tensor normal(at::IntArrayRef shape, const std::string& name, at::ScalarType dtype) {
  at::Tensor out = at::empty(shape, at::kDouble);
  fill_normal(out, random_key(3, name), 0, 0, 1);
  return out.to(dtype);
}

// Some of the first rows often, any row sometimes: others are skipped for hundreds of updates.
at::Tensor rows_of(int64_t step) {
  at::Tensor drawn = at::empty({6}, at::kDouble);
  fill_uniform(drawn, random_key(4, "rows", uint64_t(step)), 0, 0, 1);
  const at::Tensor skewed = (drawn.pow(6) * double(rows)).floor().to(at::kLong).clamp(0, rows - 1);
  return std::get<0>(at::_unique2(skewed));
}

// A warm-up and then a decay.
double rate_of(int64_t step, bool schedule) {
  if (!schedule) return 0.01;
  return 0.02 * std::min(1.0, double(step) / 40) * (1 + std::cos(double(step) / 120));
}

struct RowCase {
  std::string name;
  Component optimizer;
  double weight_decay = 0;
  bool schedule = false;
  double tolerance = 1e-14;  // share of the largest value; fp64
};

struct Trained {
  at::Tensor values;
  std::vector<std::pair<std::string, at::Tensor>> moments;
};

Trained train_dense(const RowCase& one, at::ScalarType dtype, int64_t steps) {
  at::Tensor values = normal({rows, width}, "values", dtype);
  auto optimizer = make_optimizer(one.optimizer);
  SlotOptions options;
  options.weight_decay = one.weight_decay;
  options.learning_rate_factor = 0.7;
  optimizer->add_slot(values, options);
  for (int64_t step = 1; step <= steps; ++step) {
    at::Tensor gradient = at::zeros({rows, width}, dtype);
    const at::Tensor touched = rows_of(step);
    gradient.index_copy_(0, touched, normal({touched.numel(), width}, "g" + std::to_string(step), dtype));
    optimizer->update(0, {gradient, {}, {}}, scalars(rate_of(step, one.schedule), step, 0.5));
  }
  return {values, optimizer->moments(0)};
}

Trained train_rows(const RowCase& one, at::ScalarType dtype, int64_t steps, RowOptimizer& optimizer,
                   int64_t settle_every = 0) {
  at::Tensor values = normal({rows, width}, "values", dtype);
  SlotOptions options;
  options.weight_decay = one.weight_decay;
  options.learning_rate_factor = 0.7;
  optimizer.add_table(values, options);
  for (int64_t step = 1; step <= steps; ++step) {
    const at::Tensor touched = rows_of(step);
    optimizer.update(0, touched, normal({touched.numel(), width}, "g" + std::to_string(step), dtype),
                     scalars(rate_of(step, one.schedule), step, 0.5));
    if (settle_every > 0 && step % settle_every == 0) optimizer.flush(0);
  }
  optimizer.flush(0);
  return {values, optimizer.moments(0)};
}

double relative_to_largest(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item().toDouble();
}

std::vector<RowCase> row_cases() {
  return {
      {"adam", adam("adam"), 0, false, 1e-14},    {"adam_scheduled", adam("adam"), 0, true, 1e-14},
      {"adamw", adam("adamw"), 0.1, true, 1e-14}, {"sgd", sgd(0, false), 0, true},
      {"sgd_decayed", sgd(0, false), 0.1, true},  {"momentum", sgd(0.9, false), 0, true},
      {"nesterov", sgd(0.9, true), 0, true},      {"adagrad", adagrad(), 0, true},
  };
}

// After the same number of updates the rows equal the dense values to the last digits.
TEST(RowOptimizer, ReachesTheDenseValuesInDouble) {
  for (const RowCase& one : row_cases()) {
    for (const int64_t steps : {1, 7, 900}) {
      const Trained dense = train_dense(one, at::kDouble, steps);
      const auto optimizer = make_row_optimizer(one.optimizer);
      const Trained by_rows = train_rows(one, at::kDouble, steps, *optimizer);
      EXPECT_LE(relative_to_largest(by_rows.values, dense.values), one.tolerance) << one.name << " after " << steps;
      ASSERT_EQ(by_rows.moments.size(), dense.moments.size());
      for (size_t i = 0; i < dense.moments.size(); ++i) {
        EXPECT_EQ(by_rows.moments[i].first, dense.moments[i].first);
        EXPECT_LE(relative_to_largest(by_rows.moments[i].second, dense.moments[i].second), 1e-12) << one.name;
      }
      EXPECT_GT(relative_to_largest(dense.values, normal({rows, width}, "values", at::kDouble)), 1e-5)
          << "nothing moved";
    }
  }
}

// The closed form is exact only for eps → 0 and eps → ∞. Its error stays below 5e-3 of the largest change of a value.
TEST(RowOptimizer, ClosedFormStaysNearTheDenseValuesInFloat) {
  for (const RowCase& one : row_cases()) {
    const Trained dense = train_dense(one, at::kFloat, 300);
    const auto optimizer = make_row_optimizer(one.optimizer);
    const Trained by_rows = train_rows(one, at::kFloat, 300, *optimizer);
    const at::Tensor moved = (dense.values - normal({rows, width}, "values", at::kFloat)).abs().max();
    const double off = ((by_rows.values - dense.values).abs().max() / moved).item().toDouble();
    EXPECT_LE(off, 5e-3) << one.name;
    EXPECT_TRUE(by_rows.values.isfinite().all().item().toBool()) << one.name;
  }
}

TEST(RowOptimizer, ClosedFormAndReplayAgree) {
  for (const bool schedule : {false, true}) {
    const RowCase exact{"", adam("adamw", {{"catch_up", "exact"}}), 0.1, schedule},
        closed{"", adam("adamw", {{"catch_up", "closed"}}), 0.1, schedule};
    const auto a = make_row_optimizer(exact.optimizer), b = make_row_optimizer(closed.optimizer);
    const Trained one = train_rows(exact, at::kDouble, 600, *a), other = train_rows(closed, at::kDouble, 600, *b);
    EXPECT_LE(relative_to_largest(other.values, one.values), 1e-4);
    EXPECT_GT(relative_to_largest(other.values, one.values), 0) << "both went the same way";
  }
}

// A row without gradient for longer than the window of terms still decays.
TEST(RowOptimizer, LongSkipsKeepDecay) {
  const RowCase one{"", adam("adamw"), 0.5, false};
  at::Tensor values = at::ones({2, 3}, at::kDouble), dense = values.clone();
  const auto by_rows = make_row_optimizer(one.optimizer);
  const auto whole = make_optimizer(one.optimizer);
  SlotOptions options;
  options.weight_decay = 0.5;
  by_rows->add_table(values, options);
  whole->add_slot(dense, options);
  for (int64_t step = 1; step <= 2000; ++step) {
    at::Tensor gradient = at::zeros({2, 3}, at::kDouble);
    const bool first = step == 1;
    gradient[0].fill_(first ? 0.3 : 0);
    gradient[1].fill_(0.1);
    whole->update(0, {gradient, {}, {}}, scalars(0.01, step, 0.5));
    const at::Tensor touched = first ? at::tensor({0, 1}, at::kLong) : at::tensor({1}, at::kLong);
    by_rows->update(0, touched, gradient.index_select(0, touched), scalars(0.01, step, 0.5));
  }
  at::Tensor seen = at::empty({1, 3}, at::kDouble);
  by_rows->look_up(0, at::tensor({0}, at::kLong), seen);
  EXPECT_LE(relative_to_largest(seen, dense.narrow(0, 0, 1)), 1e-12);
  EXPECT_GT(relative_to_largest(values.narrow(0, 0, 1), dense.narrow(0, 0, 1)), 1e-3)
      << "looking up wrote to the table";
  by_rows->flush(0);
  EXPECT_LE(relative_to_largest(values, dense), 1e-12);
}

TEST(RowOptimizer, LookUpsAndFlushesKeepResults) {
  const RowCase one{"", adam("adamw"), 0.1, true};
  const auto a = make_row_optimizer(one.optimizer), b = make_row_optimizer(one.optimizer);
  const Trained once = train_rows(one, at::kDouble, 200, *a), often = train_rows(one, at::kDouble, 200, *b, 3);
  EXPECT_LE(relative_to_largest(often.values, once.values), 1e-14);
}

// An update may reuse what the look-up before it computed. Every value is as without look-ups, also if the update has
// other rows, in another order, or if rows were caught up in between.
TEST(RowOptimizer, LookUpsChangeNoValue) {
  const RowCase one{"", adam("adamw"), 0.1, true};
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto plain = make_row_optimizer(one.optimizer), looked_up = make_row_optimizer(one.optimizer);
    SlotOptions options;
    options.weight_decay = one.weight_decay;
    at::Tensor expected = normal({rows, width}, "values", dtype), values = expected.clone();
    plain->add_table(expected, options);
    looked_up->add_table(values, options);
    const auto look_up = [&](const at::Tensor& list) {
      looked_up->look_up(0, list, at::empty({list.numel(), width}, at::TensorOptions(dtype)));
    };
    for (int64_t step = 1; step <= 120; ++step) {
      const at::Tensor touched = rows_of(step), other = rows_of(step + 1);
      if (step % 7 == 1) look_up(touched);
      if (step % 7 == 2) look_up(touched.flip(0));
      if (step % 7 == 3) look_up(touched.narrow(0, 0, touched.numel() / 2));
      if (step % 7 == 4) look_up(at::cat({touched, other}));
      if (step % 7 == 5) look_up(at::cat({other, touched}));
      for (const auto& optimizer : {plain.get(), looked_up.get()}) {
        if (step % 5 == 0) optimizer->flush_rows(0, touched);
        if (step % 31 == 0) optimizer->flush(0);
        optimizer->update(0, touched, normal({touched.numel(), width}, "g" + std::to_string(step), dtype),
                          scalars(rate_of(step, true), step, 0.5));
      }
    }
    plain->flush(0);
    looked_up->flush(0);
    EXPECT_TRUE(values.equal(expected)) << dtype;
  }
}

TEST(RowOptimizer, CopiesAreTheFlushedRows) {
  for (const RowCase& one : row_cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const auto flushed = make_row_optimizer(one.optimizer), copied = make_row_optimizer(one.optimizer);
      const auto updates = [&](RowOptimizer& optimizer, int64_t from, int64_t to) {
        for (int64_t step = from; step <= to; ++step) {
          const at::Tensor touched = rows_of(step);
          optimizer.update(0, touched, normal({touched.numel(), width}, "g" + std::to_string(step), dtype),
                           scalars(rate_of(step, one.schedule), step, 0.5));
        }
      };
      const auto start = [&](RowOptimizer& optimizer) {
        at::Tensor values = normal({rows, width}, "values", dtype);
        SlotOptions options;
        options.weight_decay = one.weight_decay;
        optimizer.add_table(values, options);
        updates(optimizer, 1, 40);
        return values;
      };
      const at::Tensor expected = start(*flushed), values = start(*copied);
      const std::vector<at::Tensor> copies = copied->memory_for_copies(0);
      ASSERT_EQ(copies.size(), 1 + copied->moments(0).size()) << one.name;
      for (const bool stale : {true, false}) {
        EXPECT_EQ(copied->stale(0), stale && one.name != "adagrad") << one.name;  // adagrad misses nothing
        for (const at::Tensor& copy : copies) at::Tensor(copy).fill_(-7);
        flushed->flush(0);
        copied->flush_and_copy(0, copies);
        EXPECT_TRUE(values.equal(expected)) << one.name;
        EXPECT_TRUE(copies.front().equal(expected)) << one.name;
        for (size_t i = 0; i + 1 < copies.size(); ++i)
          EXPECT_TRUE(copies[i + 1].equal(flushed->moments(0)[i].second)) << one.name;
      }
      const at::Tensor before = copies.front().clone();
      updates(*copied, 41, 60);
      copied->flush(0);
      EXPECT_TRUE(copies.front().equal(before)) << "a copy does not change with the training";
      EXPECT_FALSE(values.equal(before)) << one.name;
    }
  }
}

TEST(RowOptimizer, DoesNotDependOnThreads) {
  const RowCase one{"", adam("adamw"), 0.1, true};
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int count : {1, 2, 4}) {
    at::set_num_threads(count);
    const auto optimizer = make_row_optimizer(one.optimizer);
    results.push_back(train_rows(one, at::kFloat, 50, *optimizer).values.clone());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(results[1].equal(results[0]));
  EXPECT_TRUE(results[2].equal(results[0]));
}

// The path of devices without convoy's loops.
TEST(RowOptimizer, TensorOperationsMatchLoops) {
  for (const RowCase& one : row_cases()) {
    const auto tensors = make_row_optimizer(one.optimizer, /*tensors=*/true), loops = make_row_optimizer(one.optimizer);
    const Trained a = train_rows(one, at::kFloat, 60, *tensors), b = train_rows(one, at::kFloat, 60, *loops);
    EXPECT_LE(relative_to_largest(a.values, b.values), 1e-5) << one.name;
  }
}

TEST(RowOptimizer, ASkippedUpdateChangesNothing) {
  const auto optimizer = make_row_optimizer(adam("adamw"));
  at::Tensor values = normal({rows, width}, "values", at::kDouble);
  const at::Tensor before = values.clone();
  SlotOptions options;
  options.weight_decay = 0.1;
  optimizer->add_table(values, options);
  optimizer->update(0, rows_of(1), at::full({rows_of(1).numel(), width}, NAN, at::kDouble),
                    scalars(0.1, 1, 0.5, false));
  optimizer->flush(0);
  EXPECT_TRUE(values.equal(before));
}

// A row without gradient stays, and one with a gradient makes the step of torch's SparseAdam.
TEST(RowOptimizer, LazyRowsKeepTheirValues) {
  const auto optimizer = make_row_optimizer(adam("adam", {{"lazy", true}}));
  at::Tensor values = at::zeros({3, 1}, at::kDouble);
  optimizer->add_table(values, {});
  const auto update = [&](int64_t row, int64_t step) {
    optimizer->update(0, at::tensor({row}, at::kLong), at::full({1, 1}, 2.0, at::kDouble), scalars(0.01, step, 0.5));
  };
  update(0, 1);
  const double after = values[0][0].item<double>();
  EXPECT_NEAR(after, -0.01, 1e-8);
  for (int64_t step = 2; step <= 9; ++step) update(1, step);
  optimizer->flush(0);
  EXPECT_EQ(values[0][0].item<double>(), after);
  update(0, 10);
  const double mean = 0.1 * 1 + 0.9 * 0.1, square = 0.001 + 0.999 * 0.001;
  const double step = 0.01 * mean / (1 - std::pow(0.9, 10)) / (std::sqrt(square / (1 - std::pow(0.999, 10))) + 1e-8);
  EXPECT_NEAR(values[0][0].item<double>(), after - step, 1e-12);
}

TEST(RowOptimizer, RefusesOptionsThatNeedAllRows) {
  SlotOptions decayed;
  decayed.weight_decay = 0.1;
  for (const Component& optimizer : {adam("adam"), sgd(0.9, false), adagrad()})
    EXPECT_THROW(make_row_optimizer(optimizer)->add_table(at::zeros({2, 2}), decayed), Error) << optimizer.name;
  EXPECT_THROW(make_row_optimizer(adam("adam", {{"betas", {0.9, 0.8}}}))->add_table(at::zeros({2, 2}), {}), Error);
  EXPECT_THROW(make_row_optimizer(sgd(1, false))->add_table(at::zeros({2, 2}), {}), Error);
}

TEST(RowOptimizer, ObstaclesNameTheKey) {
  const auto key = [](const Component& optimizer, double decay) {
    return row_obstacle(optimizer_options(optimizer), decay).key;
  };
  EXPECT_EQ(key(adam("adam"), 0.1), "weight_decay");
  EXPECT_EQ(key(adam("adamw"), 0.1), "");
  EXPECT_EQ(key(adam("adam", {{"betas", {0.9, 0.0}}}), 0), "betas");
  EXPECT_EQ(key(adam("adam", {{"betas", {0.0, 0.0}}}), 0), "");
  EXPECT_EQ(key(sgd(0.9, false), 0.1), "weight_decay");
  EXPECT_EQ(key(sgd(0, false), 0.1), "");
  EXPECT_EQ(key(sgd(0.999, false), 0), "momentum");
  EXPECT_EQ(key(adam("adam", {{"betas", {0.9, 0.8}}}), 0), "betas");
  EXPECT_EQ(key(adagrad(), 0), "");
}

}  // namespace
}  // namespace convoy
