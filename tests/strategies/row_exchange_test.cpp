// Sparse embeddings on one rank, and exchanges of rows between several ranks.
#include "strategies/sparse/exchange/row_exchange.h"
#include "strategies/plans/costs/sparse_cost.h"
#include "strategies/sparse/exchange/row_gather.h"
#include "strategies/sparse/sharded_rows.h"
#include "strategies/sparse/shared_rows.h"
#include "strategies/sparse/touched_row_sums.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "core/base/error.h"
#include "core/optim/rows/row_optimizer.h"
#include "tests/support/torch/equivalence.h"
#include "tests/support/torch/random_tensors.h"

namespace convoy::testing {
namespace {

constexpr int64_t table_rows = 50, width = 6;

Component adamw() {
  return {"adamw",
          Options(Json{
              {"lr", 0.1}, {"weight_decay", 0.1}, {"groups", Json::array()}, {"betas", {0.9, 0.999}}, {"eps", 1e-8}})};
}

struct Made {
  ParameterPtr parameter = std::make_shared<Parameter>();
  std::unique_ptr<RowOptimizer> optimizer = make_row_optimizer(adamw());
  ForwardState state;

  explicit Made(int64_t rows = table_rows, const std::shared_ptr<const SparseRowBlocks>& blocks = nullptr,
                const std::shared_ptr<SharedRows>& host = nullptr) {
    parameter->name = "table";
    at::Tensor value = normal({rows, width}, "values", 3);
    if (blocks) {
      std::vector<at::Tensor> own;
      for (const SparseRowBlocks::Range& one : blocks->local_ranges())
        own.push_back(value.narrow(0, one.first, one.rows));
      value = at::cat(own);
    }
    parameter->value = value.set_requires_grad(true);
    parameter->table = std::make_shared<SparseEmbedding>("table", parameter->value, blocks, host);
    SlotOptions options;
    options.weight_decay = 0.1;
    parameter->table->connect(optimizer.get(), options);
    state.training = true;
    parameter->table->begin();
  }
  SparseEmbedding& table() { return parameter->table->embedding(); }
  // Forward and backward; the gradient is random and depends on `name`.
  void use(const at::Tensor& ids, const std::string& name) {
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(width);
    torch::autograd::backward({table().embed(ids, state)}, {normal(shape, name, 3)});
  }
  void update(int64_t step) {
    table().set_update(table().touched());
    const auto one = [](double value) { return at::full({1}, value, at::kDouble); };
    optimizer->update(0, table().update().numbers, table().update().values,
                      {one(0.1), at::full({1}, step, at::kLong), one(1), at::ones({1}, at::kBool)});
    table().begin();
  }
};

at::Tensor ids_of(std::initializer_list<int64_t> ids) { return at::tensor(at::ArrayRef<int64_t>(ids), at::kLong); }

at::Tensor dense_sum(const TableRows& rows) {
  return at::zeros({table_rows, width}, at::kDouble).index_add_(0, rows.numbers, rows.values);
}

TEST(SparseEmbedding, AddsGradientsOfAllUsesOfARow) {
  Made made;
  const at::Tensor first = ids_of({4, 7, 4, 49}), second = ids_of({7, 0, 7, 4}).view({2, 2});
  made.use(first, "a");
  made.use(second, "b");
  at::Tensor expected = at::zeros({table_rows, width}, at::kDouble);
  expected.index_add_(0, first, normal({4, width}, "a", 3));
  expected.index_add_(0, second.view({-1}), normal({2, 2, width}, "b", 3).view({4, width}));
  const TableRows rows = made.table().touched();
  EXPECT_EQ(rows.numbers.numel(), 4);
  EXPECT_LE((dense_sum(rows) - expected).abs().max().item<double>(), 1e-15);
  EXPECT_FALSE(made.parameter->value.grad().defined());
}

TEST(SparseEmbedding, LookUpsSeeCurrentRows) {
  Made made;
  made.use(ids_of({1, 2}), "a");
  made.update(1);
  for (int64_t step = 2; step < 9; ++step) {
    made.use(ids_of({3}), "b");
    made.update(step);
  }
  const at::Tensor trained = made.table().embed(ids_of({2, 1, 3, 30}), made.state).detach().clone();
  made.state.training = false;
  const at::Tensor evaluated = made.table().embed(ids_of({2, 1, 3, 30}), made.state);
  EXPECT_FALSE(evaluated.requires_grad());
  made.optimizer->flush(0);
  const at::Tensor flushed = made.parameter->value.detach().index_select(0, ids_of({2, 1, 3, 30}));
  EXPECT_TRUE(trained.equal(flushed));
  EXPECT_TRUE(evaluated.equal(flushed));
  EXPECT_FALSE(flushed.equal(normal({table_rows, width}, "values", 3).index_select(0, ids_of({2, 1, 3, 30}))));
}

TEST(SparseEmbedding, RefusesMissingRows) {
  Made made;
  for (const int64_t id : {int64_t{-1}, table_rows}) {
    try {
      made.table().embed(ids_of({3, id}), made.state);
      ADD_FAILURE() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::training);
      EXPECT_NE(std::string(error.what()).find("has 0 … 49"), std::string::npos) << error.what();
    }
  }
}

// Three ranks, one of them without a row, and dense gradients. The first messages are too short for all rows.
template <class Exchange>
void expect_the_sum_of_all() {
  const std::vector<std::vector<int64_t>> used{{4, 7, 4}, {}, {7, 9, 11, 4}};
  at::Tensor expected = at::zeros({table_rows, width}, at::kDouble);
  for (int rank = 0; rank < 3; ++rank) {
    const auto n = static_cast<int64_t>(used[size_t(rank)].size());
    expected.index_add_(0, at::tensor(used[size_t(rank)], at::kLong),
                        normal({n, width}, "g" + std::to_string(rank), 3));
  }
  std::vector<TableRows> found(3);
  std::vector<at::Tensor> sums(3);
  std::vector<int64_t> sent(3);
  const Layout layout{"ddp", "", 3};
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    const auto rank = static_cast<size_t>(context.rank);
    Made made;
    Exchange exchange(context.axis("data"), {made.parameter});
    for (int round = 0; round < 2; ++round) {
      made.table().begin();
      if (!used[rank].empty()) made.use(at::tensor(used[rank], at::kLong), "g" + std::to_string(rank));
      at::Tensor dense = at::full({5}, static_cast<double>(context.rank + 1), at::kDouble);
      const int64_t before = context.world->bytes_sent();
      exchange.run({dense});
      sent[rank] = context.world->bytes_sent() - before;
      sums[rank] = dense;
    }
    found[rank] = {made.table().update().numbers.clone(), made.table().update().values.clone()};
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_LE((dense_sum(found[rank]) - expected).abs().max().item<double>(), 1e-15);
    EXPECT_TRUE(found[rank].numbers.equal(found[0].numbers));
    EXPECT_TRUE(found[rank].values.equal(found[0].values));
    EXPECT_TRUE(sums[rank].equal(at::full({5}, 6.0, at::kDouble)));
  }
  // Counts, dense gradients, two rows of rank 0 and four of rank 2: numbers padded to 8 bytes.
  EXPECT_EQ(sent[0], 2 * (8 + 40 + 8 + 2 * width * 8));
  EXPECT_EQ(sent[1], 2 * (8 + 40));
  EXPECT_EQ(sent[2], 2 * (8 + 40 + 16 + 4 * width * 8));
}

TEST(RowExchange, EveryRankGetsTheSumOfAll) { expect_the_sum_of_all<RowGather>(); }

// The path of accelerators, with tables on the CPU.
TEST(RowExchange, TensorOperationsGiveTheSameSums) { expect_the_sum_of_all<DeviceRowGather>(); }

// A step with fewer rows than the longest message so far sends a message of that length. A step with more rows sends
// two messages. No row of either is lost, and none of an older message reappears.
TEST(RowExchange, SupportsMessagesThatGrowAndShrink) {
  const Layout layout{"ddp", "", 2};
  std::mutex mutex;
  std::vector<at::Tensor> found(5), expected(5);
  for (auto* list : {&found, &expected})
    for (at::Tensor& one : *list) one = at::zeros({table_rows, width}, at::kDouble);
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    Made made;
    RowGather exchange(context.axis("data"), {made.parameter});
    for (int64_t step = 0; step < 5; ++step) {
      const int64_t n = std::vector<int64_t>{10, 3, 25, 0, 40}[size_t(step)] + (context.rank == 1 ? step % 2 : 0);
      const at::Tensor ids = (at::arange(n) * 3 + step + context.rank) % table_rows;
      const std::string name = convoy::str("g", context.rank, step);
      made.table().begin();
      if (n > 0) made.use(ids, name);
      at::Tensor dense = at::full({3}, static_cast<double>(step + context.rank), at::kFloat);
      exchange.run({dense});
      EXPECT_TRUE(dense.equal(at::full({3}, static_cast<double>(2 * step + 1), at::kFloat)));
      std::lock_guard<std::mutex> lock(mutex);
      if (context.rank == 0) found[size_t(step)] += dense_sum(made.table().update());
      if (n > 0) expected[size_t(step)].index_add_(0, ids, normal({n, width}, name, 3));
    }
  });
  for (size_t step = 0; step < 5; ++step)
    EXPECT_LE((found[step] - expected[step]).abs().max().item<double>(), 1e-14) << step;
}

// Ranks that share tables read each other's messages in place. Each row is updated once, with the sum of all ranks,
// also if messages outgrow their memory. Each rank knows if a sum may be not finite, also on another rank.
TEST(RowExchange, RanksWithSharedTablesUpdateEachRowOnce) {
  constexpr int64_t rows = 300000;
  const std::vector<int64_t> counts{10, 3, 180000, 50, 200000, 7, 7, 7};
  const Layout layout{"ddp", "", 2};
  std::mutex mutex;
  std::vector<at::Tensor> found(counts.size()), expected(counts.size()), times(counts.size());
  std::vector<std::vector<char>> finite(2);
  for (size_t step = 0; step < counts.size(); ++step) {
    found[step] = at::zeros({rows, width}, at::kDouble);
    expected[step] = at::zeros({rows, width}, at::kDouble);
    times[step] = at::zeros({rows}, at::kLong);
  }
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    const std::shared_ptr<SharedRows> host = SharedRows::create(context);
    ASSERT_NE(host, nullptr);
    Made made(rows, nullptr, host);
    RowGather exchange(context.axis("data"), {made.parameter});
    for (size_t step = 0; step < counts.size(); ++step) {
      const at::Tensor ids = (at::arange(counts[step] + context.rank) * 7 + context.rank * 3) % rows;
      at::Tensor gradient = normal({ids.numel(), width}, convoy::str("g", context.rank, step), 3);
      if (step == 5) gradient.select(0, 0).fill_(9e37);  // finite, and its sum might not be
      if (step == 6 && context.rank == 1) gradient.select(0, 2).fill_(std::nan(""));  // on one rank only
      exchange.begin();
      made.table().begin();
      torch::autograd::backward({made.table().embed(ids, made.state)}, {gradient});
      at::Tensor dense = at::full({3}, static_cast<double>(context.rank + 1), at::kFloat);
      exchange.run({dense});
      EXPECT_TRUE(dense.equal(at::full({3}, 3.0, at::kFloat)));
      const TableRows& update = made.table().update();
      {
        std::lock_guard<std::mutex> lock(mutex);
        finite[size_t(context.rank)].push_back(exchange.finite_sums());
        found[step].index_add_(0, update.numbers, update.values);
        times[step].index_add_(0, update.numbers, at::ones_like(update.numbers));
        expected[step].index_add_(0, ids, gradient);
      }
      exchange.written();
    }
    exchange.read();
  });
  for (size_t step = 0; step < counts.size(); ++step) {
    EXPECT_EQ(times[step].max().item<int64_t>(), 1) << step;
    EXPECT_TRUE(at::allclose(found[step], expected[step], 1e-14, 1e-14, true)) << step;
  }
  const std::vector<char> wanted{1, 1, 1, 1, 1, 0, 0, 1};
  EXPECT_EQ(finite[0], wanted);
  EXPECT_EQ(finite[1], wanted);
}

// No page was touched: the size alone causes the refusal.
TEST(SharedRows, RefuseATableLargerThanTheHost) {
  const Layout layout{"ddp", "", 2};
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    const std::shared_ptr<SharedRows> host = SharedRows::create(context);
    ASSERT_NE(host, nullptr);
    EXPECT_EQ(host->zeros({100, width}, at::kFloat).numel(), 100 * width);
    context.world->barrier({"all have it", {}})->wait();
    try {
      host->zeros({int64_t{1} << 40, 128}, at::kFloat);
      ADD_FAILURE() << "512 TB";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::out_of_memory);
      EXPECT_NE(std::string(error.what()).find("the host had"), std::string::npos) << error.what();
    }
  });
}

Batch batch_of(const at::Tensor& ids) {
  Batch batch;
  batch.rows = ids.size(0);
  batch.tensors = {{"other", at::zeros({ids.size(0)})}, {"ids", ids}};
  return batch;
}

// The rows of an owner's update, at their positions in the whole table.
at::Tensor whole_sum(const TableRows& rows, const SparseRowBlocks& blocks) {
  at::Tensor all = at::zeros({blocks.rows(), width}, at::kDouble);
  for (int64_t i = 0; i < rows.numbers.numel(); ++i)
    for (const SparseRowBlocks::Range& own : blocks.local_ranges()) {
      const auto place = rows.numbers[i].item<int64_t>();
      if (own.index <= place && place < own.index + own.rows) all[own.first + place - own.index] += rows.values[i];
    }
  return all;
}

// Three ranks, one of them without a row in its second step; the third step fetches for all tables at once.
TEST(ShardedRows, OwnersSendRowsAndSumGradients) {
  const at::Tensor values = normal({table_rows, width}, "values", 3);
  std::mutex mutex;
  const Layout layout{"ddp", "", 3};
  std::vector<at::Tensor> found(3), expected(3);
  for (auto* list : {&found, &expected})
    for (at::Tensor& one : *list) one = at::zeros({table_rows, width}, at::kDouble);
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    const auto blocks = std::make_shared<SparseRowBlocks>(table_rows, context.rank, 3);
    Made made(table_rows, blocks);
    ShardedRows exchange(context.axis("data"), {made.parameter});
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t n = step == 1 && context.rank == 1 ? 0 : 20 + 5 * step;
      const at::Tensor ids = (at::arange(n) * (context.rank + 3) + step) % table_rows;
      const std::string name = convoy::str("g", context.rank, step);
      const Batch batch = batch_of(ids);
      made.table().begin();
      exchange.begin();
      exchange.expect(batch);
      const at::Tensor rows = made.table().embed(batch.at("ids"), made.state);
      EXPECT_TRUE(rows.equal(values.index_select(0, ids))) << "step " << step;
      torch::autograd::backward({rows}, {normal({n, width}, name, 3)});
      at::Tensor dense = at::full({5}, static_cast<double>(context.rank + 1), at::kDouble);
      exchange.run({dense});
      EXPECT_TRUE(dense.equal(at::full({5}, 6.0, at::kDouble)));
      made.state.training = false;
      EXPECT_TRUE(made.table().embed(ids.view({n, 1}), made.state).view({n, width}).equal(rows));
      made.state.training = true;
      std::lock_guard<std::mutex> lock(mutex);
      found[size_t(step)] += whole_sum(made.table().update(), *blocks);
      expected[size_t(step)].index_add_(0, ids, normal({n, width}, name, 3));
    }
  });
  for (size_t step = 0; step < 3; ++step)
    EXPECT_LE((found[step] - expected[step]).abs().max().item<double>(), 1e-14) << step;
}

// Sent bytes equal the cost: rows picked at random, each requested once.
TEST(ShardedRows, BytesSentMatchTheCost) {
  constexpr int64_t rows = 20000, touched = 1500;
  const Layout layout{"ddp", "", 2};
  std::vector<int64_t> sent(2);
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    Made made(rows, std::make_shared<SparseRowBlocks>(rows, context.rank, 2));
    ShardedRows exchange(context.axis("data"), {made.parameter});
    for (int64_t step = 0; step < 3; ++step) {
      const Batch batch = batch_of((at::arange(touched) * 13 + 1000 * (step + context.rank)) % rows);
      const int64_t before = context.world->bytes_sent();
      made.table().begin();
      exchange.begin();
      exchange.expect(batch);
      made.use(batch.at("ids"), "g");
      at::Tensor dense = at::ones({100}, at::kDouble);
      exchange.run({dense});
      sent[size_t(context.rank)] = context.world->bytes_sent() - before;
    }
  });
  const RowCost cost = sharded_rows_cost({{double(rows), width, 8, double(touched)}}, 2, 800);
  for (const int64_t bytes : sent) EXPECT_NEAR(static_cast<double>(bytes) / cost.bytes_sent, 1, 0.08);
}

// Four ranks of one host: each touched row is updated by exactly one of the ranks that touched it, with the same sum as
// RowSums. Ranks that touch equally many rows update equally many.
TEST(TouchedRowSums, UpdateEachRowOnOneRank) {
  constexpr int ranks = 4;
  constexpr int64_t each = 400, all_rows = 1000;
  std::vector<RowIndex> touched(ranks);
  std::vector<at::Tensor> values;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int64_t i = 0; i < each; ++i) touched[size_t(rank)].position((i * 7 + 331 * rank + (i % 5) * 13) % all_rows);
    values.push_back(normal({touched[size_t(rank)].size(), width}, convoy::str("t", rank), 3));
  }
  const at::Tensor like = at::empty({all_rows, width}, at::kDouble);
  RowSums together;
  together.begin(ranks * each, like);
  for (size_t rank = 0; rank < ranks; ++rank)
    together.add(touched[rank].numbers().data(), static_cast<const char*>(values[rank].const_data_ptr()),
                 touched[rank].size());
  at::Tensor expected = at::zeros({all_rows, width}, at::kDouble), found = expected.clone();
  expected.index_copy_(0, together.rows().numbers, together.rows().values);
  at::Tensor times = at::zeros({all_rows}, at::kLong);
  for (int rank = 0; rank < ranks; ++rank) {
    TouchedRowSums sums;
    TableRows mine;
    for (int round = 0; round < 2; ++round) {  // the second contains nothing of the first
      sums.begin(touched[size_t(rank)], rank, ranks, values[size_t(rank)].clone());
      for (int other = 0; other < ranks; ++other)
        if (other != rank)
          sums.set_numbers(other, touched[size_t(other)].numbers().data(), touched[size_t(other)].size());
      for (int other = 0; other < ranks; ++other)
        sums.add(other, other == rank ? nullptr : static_cast<const char*>(values[size_t(other)].const_data_ptr()));
      mine = sums.rows();
    }
    times.index_add_(0, mine.numbers, at::ones_like(mine.numbers));
    found.index_copy_(0, mine.numbers, mine.values);
    EXPECT_NEAR(static_cast<double>(mine.numbers.numel()), static_cast<double>(together.rows().numbers.numel()) / ranks,
                0.15 * each);
  }
  EXPECT_TRUE(found.equal(expected));
  EXPECT_EQ(times.max().item<int64_t>(), 1);
  EXPECT_EQ(times.sum().item<int64_t>(), together.rows().numbers.numel());
}

// ---- in 16 bits ----

constexpr int64_t narrow_steps = 12;

// Twenty rows, of all owners.
at::Tensor narrow_ids(int rank) { return (at::arange(20) * 7 + 11 * rank) % table_rows; }

// Three ranks send the same rows in every step. Returns the sum of all steps' updates and the largest error of one
// step, both compared with sums of unrounded gradients.
struct Narrowed {
  at::Tensor all = at::zeros({table_rows, width}, at::kDouble), expected = all.clone();
  double worst_step = 0;
  std::vector<std::string> kept;  // state entries that rank 0 visits
  std::vector<int64_t> sent = std::vector<int64_t>(3);
};
template <class Exchange>
Narrowed narrowed(Compression numbers, bool dealt) {
  Narrowed result;
  std::mutex mutex;
  std::vector<at::Tensor> found(narrow_steps), expected(narrow_steps);
  for (auto* list : {&found, &expected})
    for (at::Tensor& one : *list) one = at::zeros({table_rows, width}, at::kDouble);
  const Layout layout{"ddp", "", 3};
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    const auto blocks = dealt ? std::make_shared<SparseRowBlocks>(table_rows, context.rank, 3) : nullptr;
    Made made(table_rows, blocks);
    Exchange exchange(context.axis("data"), {made.parameter}, numbers);
    for (int64_t step = 0; step < narrow_steps; ++step) {
      const at::Tensor ids = narrow_ids(context.rank);
      const Batch batch = batch_of(ids);
      made.table().begin();
      exchange.begin();
      exchange.expect(batch);
      const at::Tensor gradient = normal({20, width}, convoy::str("n", context.rank, step), 3) * 1e-4;
      torch::autograd::backward({made.table().embed(batch.at("ids"), made.state)}, {gradient});
      const int64_t before = context.world->bytes_sent();
      exchange.run({});
      result.sent[size_t(context.rank)] = context.world->bytes_sent() - before;
      std::lock_guard<std::mutex> lock(mutex);
      if (dealt)
        found[size_t(step)] += whole_sum(made.table().update(), *blocks);
      else if (context.rank == 0)
        found[size_t(step)] += dense_sum(made.table().update());
      expected[size_t(step)].index_add_(0, ids, gradient);
    }
    if (context.rank == 0)
      exchange.visit([&](const StateEntry& entry) {
        result.kept.push_back(entry.key());
        EXPECT_TRUE(entry.tensor.sizes().equals({table_rows, width}));
        EXPECT_GT(entry.tensor.abs().max().item<double>(), 0);
      });
  });
  for (size_t step = 0; step < narrow_steps; ++step) {
    result.worst_step = std::max(result.worst_step, (found[step] - expected[step]).abs().max().item<double>());
    result.all += found[step];
    result.expected += expected[step];
  }
  return result;
}

void expect_error_feedback(const Narrowed& narrow, Compression numbers) {
  const double rounding = numbers == Compression::fp16 ? 0x1p-11 : 0x1p-8, most = 5e-4;
  EXPECT_GT(narrow.worst_step, 0) << "nothing was rounded";
  EXPECT_LE(narrow.worst_step, 3 * 2.5 * most * rounding);
  // The final error is one rounding of each rank's row, for any number of steps.
  EXPECT_LE((narrow.all - narrow.expected).abs().max().item<double>(), 3 * 1.5 * most * rounding);
  ASSERT_EQ(narrow.kept.size(), 1U);
  EXPECT_NE(narrow.kept.front().find("left_over"), std::string::npos);
}

TEST(HalfPrecisionRows, RoundOnceForAnyNumberOfSteps) {
  for (const Compression numbers : {Compression::fp16, Compression::bf16}) {
    SCOPED_TRACE(numbers == Compression::fp16 ? "fp16" : "bf16");
    const Narrowed gathered = narrowed<RowGather>(numbers, false);
    expect_error_feedback(gathered, numbers);
    const Narrowed by_tensors = narrowed<DeviceRowGather>(numbers, false);
    expect_error_feedback(by_tensors, numbers);
    EXPECT_LE((by_tensors.all - gathered.all).abs().max().item<double>(), 1e-18);
    expect_error_feedback(narrowed<ShardedRows>(numbers, true), numbers);
  }
}

TEST(HalfPrecisionRows, BytesSentMatchTheCost) {
  const ShardedTable table{double(table_rows), width, 8, 20, 2};
  const Narrowed gathered = narrowed<RowGather>(Compression::bf16, false);
  for (const int64_t bytes : gathered.sent) EXPECT_EQ(bytes, gathered_rows_cost({table}, 3, 0).bytes_sent);
  const Narrowed by_tensors = narrowed<DeviceRowGather>(Compression::bf16, false);
  for (const int64_t bytes : by_tensors.sent) EXPECT_EQ(bytes, gathered_rows_cost({table}, 3, 0, true).bytes_sent);
  EXPECT_EQ(gathered_rows_cost({table}, 3, 0, true).messages, 2);
  // Bytes of gradients, without those of look-ups: a quarter of fp64's, plus a head and padding for each owner.
  for (const int64_t bytes : narrowed<ShardedRows>(Compression::bf16, true).sent)
    EXPECT_NEAR(static_cast<double>(bytes), 20 * 2.0 / 3 * width * 2 + 2 * half_head_bytes, 6 * width * 2);
}

TEST(ShardedRows, RefuseALookUpThatWasNotPrefetched) {
  const Layout layout{"ddp", "", 2};
  try {
    with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
      Made made(table_rows, std::make_shared<SparseRowBlocks>(table_rows, context.rank, 2));
      ShardedRows exchange(context.axis("data"), {made.parameter});
      for (int64_t step = 0; step < 2; ++step) {
        const Batch batch = batch_of(ids_of({1, 2, 3}));
        made.table().begin();
        exchange.begin();
        exchange.expect(batch);
        made.use(step == 0 ? batch.at("ids") : batch.at("ids") + 7, "g");
        exchange.run({});
      }
    });
    ADD_FAILURE() << "nothing is refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::training);
    EXPECT_NE(std::string(error.what()).find("model.rows: true"), std::string::npos) << error.what();
  }
}

// Ids that the model computes are requested in its forward, step by step.
TEST(ShardedRows, FetchOtherRowsInForward) {
  const at::Tensor values = normal({table_rows, width}, "values", 3);
  const Layout layout{"ddp", "", 2};
  with_ranks(layout, test_config(layout, {}), [&](const Context& context) {
    Made made(table_rows, std::make_shared<SparseRowBlocks>(table_rows, context.rank, 2));
    ShardedRows exchange(context.axis("data"), {made.parameter});
    for (int64_t step = 0; step < 3; ++step) {
      const Batch batch = batch_of(ids_of({1, 2, 3}));
      made.table().begin();
      exchange.begin();
      exchange.expect(batch);
      const at::Tensor ids = batch.at("ids") + step + context.rank;
      EXPECT_TRUE(made.table().embed(ids, made.state).equal(values.index_select(0, ids)));
      exchange.run({});
    }
  });
}

}  // namespace
}  // namespace convoy::testing
