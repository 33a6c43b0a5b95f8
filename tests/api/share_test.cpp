// Batches of Run::share and Run::once: the same for any number of ranks, from every kind of data set.
#include <convoy/share.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/api/run_support.h"

namespace convoy {
namespace {

using testing::expect_error;
using testing::share_options;
using testing::TestFolder;
using testing::TestRows;

// Global batches by step, in the order of their rows.
using Rows = std::map<int64_t, std::map<int64_t, std::vector<int64_t>>>;  // by step and first row
std::vector<std::vector<int64_t>> joined(const Rows& rows) {
  std::vector<std::vector<int64_t>> batches;
  for (const auto& [step, shares] : rows) {
    batches.emplace_back();
    for (const auto& [first, share] : shares) batches.back().insert(batches.back().end(), share.begin(), share.end());
  }
  return batches;
}

std::vector<int64_t> numbers(const at::Tensor& indices) {
  return {indices.const_data_ptr<int64_t>(), indices.const_data_ptr<int64_t>() + indices.numel()};
}

// A module without training, for a Run that only reads.
struct Reader {
  explicit Reader(Job& job, const std::string& folder)
      : sgd(net->parameters(), 0.1), replicas(job, *net, sgd), run(job.resume(folder, replicas)) {}
  torch::nn::Linear net{1, 1};
  torch::optim::SGD sgd;
  Replicas replicas;
  Run run;
};

std::vector<std::vector<int64_t>> batches_of(int ranks, const ShareOptions& options, int64_t rows = 23) {
  Rows read;
  std::mutex mutex;
  const TestFolder folder;
  test_jobs(ranks, [&](Job& job) {
    Reader reader(job, folder / "run");
    for (ShareBatch& batch : reader.run.share(rows, options)) {
      EXPECT_FALSE(batch.data.defined());
      const std::lock_guard<std::mutex> lock(mutex);
      if (batch.rows > 0) read[batch.step][batch.first_row] = numbers(batch.indices);
    }
  });
  return joined(read);
}

TEST(Share, GlobalBatchesAreEqualForEveryNumberOfRanks) {
  const auto one = batches_of(1, share_options(2, 6));
  ASSERT_EQ(one.size(), 8u);  // 6 + 6 + 6 + 5 rows, twice
  EXPECT_EQ(one[3].size(), 5u);
  EXPECT_NE(one[0], one[4]) << "each epoch is shuffled anew";
  EXPECT_EQ(batches_of(2, share_options(2, 6)), one);
  EXPECT_EQ(batches_of(3, share_options(2, 6)), one);
  std::vector<int64_t> epoch;
  for (int i = 0; i < 4; ++i) epoch.insert(epoch.end(), one[i].begin(), one[i].end());
  std::sort(epoch.begin(), epoch.end());
  std::vector<int64_t> all(23);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(epoch, all);
}

TEST(Share, OptionsChooseRowsAndLength) {
  ShareOptions options = share_options(1, 10);
  options.shuffle = false;
  std::vector<std::vector<int64_t>> in_order = batches_of(2, options);
  ASSERT_EQ(in_order.size(), 3u);
  EXPECT_EQ(in_order[2], (std::vector<int64_t>{20, 21, 22}));
  options.drop_last = true;
  in_order = batches_of(2, options);
  ASSERT_EQ(in_order.size(), 2u);
  EXPECT_EQ(in_order[1].back(), 19);
  EXPECT_EQ(batches_of(1, share_options(0, 4, 8)).size(), 8u);
  EXPECT_EQ(batches_of(1, share_options(3, 4, 2)).size(), 2u);
  ShareOptions seeded = share_options(1, 23);
  seeded.seed = 7;
  EXPECT_NE(batches_of(1, seeded), batches_of(1, share_options(1, 23)));
}

// Data, target and indices of every batch, read from `dataset` without shuffling.
template <class Dataset>
void expect_rows(const Dataset& dataset, bool targets = true) {
  const TestFolder folder;
  test_jobs(1, [&](Job& job) {
    Reader reader(job, folder / "run");
    ShareOptions options = share_options(1, 9);
    TestRows rows;
    int64_t read = 0;
    for (ShareBatch& batch : reader.run.share(dataset, options)) {
      ASSERT_EQ(batch.data.sizes(), (std::vector<int64_t>{batch.rows, 3}));
      ASSERT_EQ(batch.target.defined(), targets);
      for (int64_t i = 0; i < batch.rows; ++i) {
        const auto row = rows.get(static_cast<size_t>(batch.indices[i].item<int64_t>()));
        EXPECT_TRUE(batch.data[i].equal(row.data));
        EXPECT_TRUE(!targets || batch.target[i].equal(row.target));
      }
      read += batch.rows;
    }
    EXPECT_EQ(read, 23);
  });
}

// A data set that is not derived from a class of LibTorch.
struct OnlyGet {
  torch::data::Example<> get(size_t index) { return TestRows().get(index); }
  size_t size() const { return 23; }
};
struct OnlyBatches {
  torch::data::Example<> get_batch(const std::vector<size_t>& indices) {
    std::vector<at::Tensor> data, target;
    for (size_t index : indices) {
      auto row = TestRows().get(index);
      data.push_back(row.data);
      target.push_back(row.target);
    }
    return {at::stack(data), at::stack(target)};
  }
  size_t size() const { return 23; }
};
struct WithoutTarget {
  torch::data::TensorExample get(size_t index) { return TestRows().get(index).data; }
  size_t size() const { return 23; }
};

TEST(Share, ReadsEveryKindOfMapStyleDataSet) {
  expect_rows(TestRows());
  expect_rows(TestRows().map(torch::data::transforms::Stack<>()));
  expect_rows(std::make_shared<TestRows>());
  expect_rows(OnlyGet());
  expect_rows(OnlyBatches());
  expect_rows(WithoutTarget(), false);
}

TEST(Share, RanksWithoutRowsGetTensorsWithoutRows) {
  const TestFolder folder;
  test_jobs(3, [&](Job& job) {
    Reader reader(job, folder / "run");
    int64_t batches = 0;
    for (ShareBatch& batch : reader.run.share(TestRows(), share_options(1, 2))) {
      ++batches;
      EXPECT_EQ(batch.rows, job.rank() < batch.global_rows ? 1 : 0);
      EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{batch.rows, 3}));
      EXPECT_EQ(batch.data.scalar_type(), at::kDouble);
      EXPECT_EQ(batch.target.sizes(), (std::vector<int64_t>{batch.rows, 1}));
    }
    EXPECT_EQ(batches, 12);
  });
}

TEST(Share, ReadsAheadOnRequest) {
  const TestFolder folder;
  test_jobs(2, [&](Job& job) {
    Reader reader(job, folder / "run");
    ShareOptions options = share_options(2, 6);
    options.prefetch = 3;
    int64_t rows = 0;
    for (ShareBatch& batch : reader.run.share(TestRows(), options)) rows += batch.rows;
    EXPECT_EQ(job.sum(static_cast<double>(rows)).value, 46);
  });
}

TEST(Share, ReadsDataSetsOfConvoyByName) {
  const TestFolder folder;
  const DataOptions data{{"rows", "30"}, {"evaluate_rows", "10"}, {"features", "[6]"}, {"classes", "3"}};
  test_jobs(2, [&](Job& job) {
    Reader reader(job, folder / "run");
    double rows = 0;
    for (ShareBatch& batch : reader.run.share("synthetic", data, share_options(1, 8))) {
      EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{batch.rows, 6}));
      EXPECT_TRUE(batch.at("target").equal(batch.target));
      expect_error([&] { batch.at("user"); }, Failure::config, "features, target");
      rows += static_cast<double>(batch.rows);
    }
    EXPECT_EQ(job.sum(rows).value, 30);
    rows = 0;
    for (ShareBatch& batch : reader.run.once("synthetic", data, 4)) rows += static_cast<double>(batch.rows);
    EXPECT_EQ(job.sum(rows).value, 10);
  });
  test_jobs(1, [&](Job& job) {
    Reader reader(job, folder / "other");
    expect_error([&] { reader.run.share("synthetic", {{"row", "40"}}, {}); }, Failure::config, "did you mean rows");
    expect_error([&] { reader.run.share("synthetix", {}, {}); }, Failure::config, "did you mean synthetic");
  });
}

TEST(Share, OnceReadsEveryRowInOrder) {
  const TestFolder folder;
  Rows read;
  std::mutex mutex;
  test_jobs(3, [&](Job& job) {
    Reader reader(job, folder / "run");
    for (ShareBatch& batch : reader.run.once(TestRows(), 10)) {
      EXPECT_EQ(batch.data.size(0), batch.rows);
      const std::lock_guard<std::mutex> lock(mutex);
      read[batch.step][batch.first_row] = numbers(batch.indices);
      EXPECT_EQ(batch.ends_epoch, batch.step == 2);
    }
    EXPECT_EQ(reader.run.step(), 0);
    for (ShareBatch& batch : reader.run.once(int64_t{0}, 10)) FAIL() << batch.rows;
  });
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& batch : joined(read)) all.insert(all.end(), batch.begin(), batch.end());
  std::vector<int64_t> wanted(23);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(all, wanted);
}

TEST(Share, RefusesInvalidOptions) {
  const TestFolder folder;
  test_jobs(1, [&](Job& job) {
    Reader reader(job, folder / "run");
    expect_error([&] { reader.run.share(10, share_options(1, 0)); }, Failure::config, "batch_size is 0");
    expect_error([&] { reader.run.share(0, share_options(1, 4)); }, Failure::config, "number of rows");
    expect_error([&] { reader.run.share(10, share_options(0, 4)); }, Failure::config, "would not end");
    ShareOptions options = share_options(1, 20);
    options.drop_last = true;
    expect_error([&] { reader.run.share(10, options); }, Failure::config, "drop_last leaves no batch");
    options = share_options(1, 4);
    options.checkpoint_every = Every::steps(0);
    expect_error([&] { reader.run.share(10, options); }, Failure::config, "checkpoint_every is 0");
    expect_error([&] { reader.run.once(10, 0); }, Failure::config, "batch_size is 0");
    expect_error([&] { reader.run.save(); }, Failure::config, "call share first");
  });
}

TEST(Share, NamesRanksWithDifferentOptions) {
  const TestFolder folder;
  const auto differ = [&](const std::function<void(ShareOptions&)>& change) {
    return [&folder, change] {
      test_jobs(3, [&](Job& job) {
        Reader reader(job, folder / "run");
        ShareOptions options = share_options(1, 4);
        if (job.rank() == 2) change(options);
        reader.run.share(10, options);
      });
    };
  };
  expect_error(differ([](ShareOptions& options) { options.batch_size = 5; }), Failure::disagreement,
               "rank 2 has other data or options than rank 0: batch_size: 4 -> 5");
  expect_error(differ([](ShareOptions& options) { options.checkpoint_every = Every::steps(3); }), Failure::disagreement,
               "rank 2 has other data or options than rank 0: checkpoint_every");
  expect_error(differ([](ShareOptions& options) { options.log_every = 7; }), Failure::disagreement, "log_every: ");
  expect_error(differ([](ShareOptions& options) { options.keep_last = 7; }), Failure::disagreement, "keep_last: ");
}

struct WrongRows {
  torch::data::Example<> get_batch(const std::vector<size_t>&) { return {at::zeros({2, 3}), at::zeros({2})}; }
  size_t size() const { return 23; }
};
struct Throwing {
  torch::data::Example<> get(size_t index) {
    if (index == 11) throw std::runtime_error("row 11 is unreadable");
    return TestRows().get(index);
  }
  size_t size() const { return 23; }
};

TEST(Share, ThrowsErrorsOfDataSetsOutOfTheLoop) {
  const TestFolder folder;
  const auto read = [&](auto dataset, const std::string& name) {
    test_jobs(1, [&](Job& job) {
      Reader reader(job, folder / name);
      for (ShareBatch& batch : reader.run.share(dataset, share_options(1, 6))) (void)batch;
    });
  };
  expect_error([&] { read(WrongRows(), "wrong"); }, Failure::config, "returned 'data' of shape [2, 3] for 6 rows");
  EXPECT_THROW(read(Throwing(), "throwing"), std::runtime_error);
  EXPECT_EQ(testing::json_in(folder / "throwing/summary.json")["status"], "failed");
}

}  // namespace
}  // namespace convoy
