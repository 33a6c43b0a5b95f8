// Batches of the loader on any number of ranks; its batch memory is not lost or overwritten.
#include "core/data/loader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <set>
#include <thread>

#include "core/base/error.h"

namespace convoy {
namespace {

// A row is its number, and the epoch of its gather.
class Numbers : public Dataset {
 public:
  Numbers(int64_t rows, int64_t evaluate, int64_t fails_at = -1)
      : rows_(rows), evaluate_(evaluate), fails_at_(fails_at) {}
  Schema schema() const override { return {}; }
  int64_t size(Split split) const override { return split == Split::train ? rows_ : evaluate_; }
  int64_t instances_per_row() const override { return 1; }
  Batch gather(Split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override {
    auto x = buffers.take("x", {indices.numel(), 2}, at::kLong);
    auto* out = x.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < indices.numel(); ++i) {
      const int64_t index = indices.const_data_ptr<int64_t>()[i];
      if (index == fails_at_) throw Error(Failure::corrupt_data, "row is bad");
      *out++ = index;
      *out++ = epoch;
    }
    Batch batch;
    batch.rows = indices.numel();
    batch.tensors = {{"x", x}};
    return batch;
  }

 private:
  int64_t rows_, evaluate_, fails_at_;
};

class AddHundred : public Transform {
 public:
  explicit AddHundred(bool evaluation) : evaluation_(evaluation) {}
  void apply(Batch& batch, const at::Tensor&, uint64_t, int64_t) const override { batch.tensors[0].second.add_(100); }
  bool evaluation_too() const override { return evaluation_; }

 private:
  bool evaluation_;
};

std::vector<int64_t> first_column(const Batch& batch) {
  const auto column = batch.at("x").select(1, 0).contiguous();
  return {column.const_data_ptr<int64_t>(), column.const_data_ptr<int64_t>() + column.numel()};
}

TEST(Loader, VisitsEachRowOnceAnEpochForAnyWorldSize) {
  const auto data = std::make_shared<Numbers>(203, 0);
  const Sampler sampler(203, 16, 5);
  std::vector<std::vector<int64_t>> global;  // batch t on one rank
  for (int64_t count : {1, 2, 3, 4, 7}) {
    std::vector<int64_t> seen;
    std::vector<std::vector<int64_t>> batches(size_t(sampler.steps_per_epoch()));
    for (int64_t index = 0; index < count; ++index) {
      LoaderOptions options;
      options.share_index = index;
      options.share_count = count;
      Loader loader(data, {}, sampler, 0, sampler.steps_per_epoch(), options);
      size_t step = 0;
      while (auto batch = loader.next()) {
        const auto rows = first_column(*batch);
        EXPECT_EQ(batch->rows, int64_t(rows.size()));
        EXPECT_EQ(batch->first_row, int64_t(batches[step].size()));
        EXPECT_EQ(batch->global_rows, sampler.rows_of(int64_t(step)));
        EXPECT_EQ(batch->nominal_rows, 16);
        batches[step].insert(batches[step].end(), rows.begin(), rows.end());
        seen.insert(seen.end(), rows.begin(), rows.end());
        ++step;
      }
      EXPECT_EQ(step, batches.size());
    }
    if (count == 1) global = batches;
    EXPECT_EQ(batches, global) << count << " ranks";
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), 203u) << count << " ranks";
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], int64_t(i));
  }
}

TEST(Loader, ResumesInTheMiddleWithTheSameBatches) {
  const auto data = std::make_shared<Numbers>(100, 0);
  const Sampler sampler(100, 8, 5);
  Loader whole(data, {}, sampler, 0, 30, {}), resumed(data, {}, sampler, 17, 30, {});
  for (int step = 0; step < 17; ++step) whole.next();
  for (int step = 17; step < 30; ++step) {
    const auto a = whole.next(), b = resumed.next();
    ASSERT_TRUE(a && b);
    EXPECT_TRUE(at::equal(a->at("x"), b->at("x"))) << "step " << step;
  }
  EXPECT_FALSE(whole.next() || resumed.next());
}

TEST(Loader, EvaluationIsExactAndSharesMayBeEmpty) {
  const auto data = std::make_shared<Numbers>(1, 21);
  for (int64_t count : {1, 2, 3, 4}) {
    std::vector<int64_t> seen;
    int64_t empty = 0;
    for (int64_t index = 0; index < count; ++index) {
      LoaderOptions options;
      options.share_index = index;
      options.share_count = count;
      Loader loader(data, {}, 10, options);
      int64_t batches = 0;
      while (auto batch = loader.next()) {
        const auto rows = first_column(*batch);
        seen.insert(seen.end(), rows.begin(), rows.end());
        empty += rows.empty();
        ++batches;
      }
      EXPECT_EQ(batches, 3);  // each rank gets every batch, perhaps with no row
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), 21u);
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], int64_t(i));
    EXPECT_EQ(empty, count - 1);
  }
}

TEST(Loader, EvaluationAppliesNoTrainingTransforms) {
  const auto data = std::make_shared<Numbers>(4, 4);
  const std::vector<std::shared_ptr<const Transform>> transforms{std::make_shared<AddHundred>(false),
                                                                 std::make_shared<AddHundred>(true)};
  Loader train(data, transforms, Sampler(4, 4, 1, false), 0, 1, {}), evaluate(data, transforms, 4, {});
  EXPECT_EQ(first_column(*train.next())[0], 200);
  EXPECT_EQ(first_column(*evaluate.next())[0], 100);
}

// Remembers who gathers.
class Watched : public Numbers {
 public:
  explicit Watched(bool gathers_from_memory) : Numbers(64, 0), at_hand_(gathers_from_memory) {}
  bool gathers_from_memory() const override { return at_hand_; }
  Batch gather(Split split, const at::Tensor& indices, int64_t epoch, BatchBuffers& buffers) const override {
    by_ = std::this_thread::get_id();
    return Numbers::gather(split, indices, epoch, buffers);
  }
  std::thread::id by() const { return by_; }

 private:
  bool at_hand_;
  mutable std::atomic<std::thread::id> by_{};
};

std::vector<std::vector<int64_t>> batches_of(const DatasetPtr& data, std::optional<int64_t> prefetch) {
  const Sampler sampler(64, 10, 5);
  LoaderOptions options;
  options.prefetch = prefetch;
  Loader loader(data, {}, sampler, 0, 9, options);
  std::vector<std::vector<int64_t>> batches;
  std::vector<Batch> held;  // batch memory comes back late
  while (auto batch = loader.next()) {
    batches.push_back(first_column(*batch));
    held.push_back(std::move(*batch));
    if (held.size() > 2) held.erase(held.begin());
  }
  EXPECT_GT(loader.cpu_seconds(), 0);
  return batches;
}

TEST(Loader, BatchesDoNotDependOnWorkers) {
  const auto ahead = std::make_shared<Watched>(true), now = std::make_shared<Watched>(true);
  const auto wanted = batches_of(ahead, 4);
  EXPECT_EQ(wanted.size(), 9u);
  EXPECT_NE(ahead->by(), std::this_thread::get_id());
  EXPECT_EQ(batches_of(now, 0), wanted);
  EXPECT_EQ(now->by(), std::this_thread::get_id());
}

TEST(Loader, StartsNoThreadOnOneCoreForRowsInMemory) {
  std::thread([] {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int core = 0; CPU_COUNT(&one) == 0; ++core)
      if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    const auto mine = [](bool gathers_from_memory) {
      const auto data = std::make_shared<Watched>(gathers_from_memory);
      batches_of(data, std::nullopt);
      return data->by() == std::this_thread::get_id();
    };
    if (CPU_COUNT(&all) > 1) {
      EXPECT_FALSE(mine(true));
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_TRUE(mine(true));
    EXPECT_FALSE(mine(false)) << "a disk is waited for";
  }).join();
}

TEST(Loader, NextRethrowsErrorsOfTheDataSet) {
  Loader loader(std::make_shared<Numbers>(10, 0, 7), {}, Sampler(10, 2, 1, false), 0, 5, {});
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(loader.next());
  EXPECT_THROW(loader.next(), Error);
}

TEST(Loader, ReusesMemoryOnlyAfterItsRelease) {
  const auto data = std::make_shared<Numbers>(64, 0);
  std::set<const void*> places;
  std::optional<Batch> held;
  std::vector<int64_t> before;
  Loader loader(data, {}, Sampler(64, 8, 1), 0, 400, {});
  for (int step = 0; step < 400; ++step) {
    auto batch = loader.next();
    places.insert(batch->at("x").const_data_ptr());
    if (step == 3) {
      // A view alone must keep the memory, like a graph's saved tensor.
      held = batch->slice(2, 5);
      before = first_column(*held);
    }
  }
  EXPECT_EQ(first_column(*held), before);
  EXPECT_LE(places.size(), 8u);
}

TEST(Loader, EndsWhileItsQueueIsFull) {
  const auto begin = std::chrono::steady_clock::now();
  {
    Loader loader(std::make_shared<Numbers>(64, 0), {}, Sampler(64, 8, 1), 0, 1000000, {});
    loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_GT(loader.cpu_seconds(), 0);
    EXPECT_LT(loader.cpu_seconds(), 0.02);  // it sleeps, it does not spin
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace convoy
