// Row samples of ensemble members: their distribution, the same rows for a member alone and among others, and held-out
// rows.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "core/base/error.h"
#include "core/data/loader.h"

namespace convoy {
namespace {

using Rows = MemberSample::Rows;

MemberSample draw(Rows rows, uint64_t seed, int64_t member = 0) {
  MemberSample made;
  made.rows = rows;
  made.seed = seed;
  made.member = member;
  made.fraction = 0.3;
  made.folds = rows == Rows::fold ? 7 : 0;
  return made;
}

std::vector<int64_t> drawn(const MemberSample& draw, int64_t rows) {
  const RowSample draws(draw, rows);
  std::vector<int64_t> all;
  for (int64_t position = 0; position < draws.size(); ++position) all.push_back(draws.at(position));
  return all;
}

std::vector<int64_t> held_out(const MemberSample& draw, int64_t rows) {
  const RowSample draws(draw, rows);
  std::vector<int64_t> all(static_cast<size_t>(draws.held_out()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  draws.map_held_out(all.data(), draws.held_out());
  return all;
}

TEST(MemberSamples, BootstrapsLeaveOutTheExpectedNumberOfRows) {
  constexpr int64_t rows = 20000;
  const auto one = drawn(draw(Rows::bootstrap, 7), rows);
  ASSERT_EQ(one.size(), static_cast<size_t>(rows));
  std::vector<int64_t> times(rows, 0);
  for (int64_t row : one) ++times.at(static_cast<size_t>(row));
  // The number of times that a row occurs follows Poisson's law with mean 1; standard deviations of the fractions are
  // below 0.004.
  for (int64_t k = 0; k < 4; ++k) {
    const auto share = static_cast<double>(std::count(times.begin(), times.end(), k)) / rows;
    EXPECT_NEAR(share, std::exp(-1) / std::tgamma(k + 1.0), 0.015) << k << " times";
  }
  // Two members have as many rows in common as by chance.
  const auto other = drawn(draw(Rows::bootstrap, 8), rows);
  EXPECT_NE(one, other);
  const std::set<int64_t> mine(one.begin(), one.end()), theirs(other.begin(), other.end());
  std::vector<int64_t> both;
  std::set_intersection(mine.begin(), mine.end(), theirs.begin(), theirs.end(), std::back_inserter(both));
  EXPECT_NEAR(static_cast<double>(both.size()) / rows, std::pow(1 - std::exp(-1), 2), 0.015);
}

TEST(MemberSamples, SubsetsHaveDistinctRows) {
  for (int64_t rows : {1, 2, 10, 1003}) {
    const auto one = drawn(draw(Rows::subset, 7), rows);
    EXPECT_EQ(one.size(), static_cast<size_t>(std::max<int64_t>(1, std::llround(0.3 * static_cast<double>(rows)))));
    EXPECT_EQ(std::set<int64_t>(one.begin(), one.end()).size(), one.size());
    EXPECT_LT(*std::max_element(one.begin(), one.end()), rows);
  }
  EXPECT_NE(drawn(draw(Rows::subset, 7), 1003), drawn(draw(Rows::subset, 8), 1003));
}

TEST(MemberSamples, FoldsPartitionTheRowsForAnySeed) {
  for (int64_t rows : {7, 70, 1003}) {
    std::vector<int64_t> left_out;
    for (int64_t member = 0; member < 7; ++member) {
      const MemberSample fold = draw(Rows::fold, static_cast<uint64_t>(100 + member), member);
      auto trained = drawn(fold, rows), held = held_out(fold, rows);
      EXPECT_EQ(held.size(), static_cast<size_t>(rows / 7));
      left_out.insert(left_out.end(), held.begin(), held.end());
      // Training rows and held-out rows together are all rows, each once.
      trained.insert(trained.end(), held.begin(), held.end());
      std::sort(trained.begin(), trained.end());
      ASSERT_EQ(trained.size(), static_cast<size_t>(rows));
      for (int64_t row = 0; row < rows; ++row) ASSERT_EQ(trained[static_cast<size_t>(row)], row);
    }
    // No row is held out twice, and all but the few that 7 does not divide are held out once.
    EXPECT_EQ(std::set<int64_t>(left_out.begin(), left_out.end()).size(), left_out.size());
    EXPECT_EQ(left_out.size(), static_cast<size_t>(rows / 7 * 7));
  }
  EXPECT_EQ(held_out(draw(Rows::fold, 1, 2), 70), held_out(draw(Rows::fold, 9, 9), 70)) << "2 = 9 mod 7";
  EXPECT_THROW(RowSample(draw(Rows::fold, 1), 6), Error) << "seven folds of six rows";
}

TEST(MemberSamples, EpochsReadTheSameRowsInDifferentOrder) {
  for (Rows rows : {Rows::all, Rows::bootstrap, Rows::subset, Rows::fold}) {
    const Sampler sampler(101, 10, draw(rows, 5, 3));
    std::vector<std::vector<int64_t>> epochs;
    for (int64_t epoch : {0, 1}) {
      std::vector<int64_t> read;
      for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
        const at::Tensor batch = sampler.indices(epoch * sampler.steps_per_epoch() + step, 0, 1);
        EXPECT_EQ(batch.numel(), sampler.rows_of(step));
        read.insert(read.end(), batch.const_data_ptr<int64_t>(), batch.const_data_ptr<int64_t>() + batch.numel());
      }
      epochs.push_back(read);
    }
    EXPECT_NE(epochs[0], epochs[1]);
    auto expected = drawn(draw(rows, 5, 3), 101);
    std::sort(expected.begin(), expected.end());
    for (auto& epoch : epochs) {
      std::sort(epoch.begin(), epoch.end());
      EXPECT_EQ(epoch, expected);
    }
  }
}

// A row has its number, and the number modulo 251 in a field of bytes.
class Numbered : public Dataset {
 public:
  Schema schema() const override { return {}; }
  int64_t size(Split split) const override { return split == Split::train ? 203 : 11; }
  int64_t instances_per_row() const override { return 1; }
  Batch gather(Split, const at::Tensor& indices, int64_t, BatchBuffers& buffers) const override {
    auto number = buffers.take("number", {indices.numel()}, at::kLong);
    auto byte = buffers.take("byte", {indices.numel(), 2, 3}, at::kByte);
    number.copy_(indices);
    byte.copy_(indices.view({-1, 1, 1}).remainder(251));
    Batch batch;
    batch.tensors = {{"number", number}, {"byte", byte}};
    batch.rows = indices.numel();
    return batch;
  }
};

// A member among others sees the same rows as a single model, in every share and micro-batch.
TEST(MemberSamples, AMemberReadsTheSameRowsAsAlone) {
  const auto data = std::make_shared<Numbered>();
  for (Rows rows : {Rows::all, Rows::bootstrap, Rows::subset, Rows::fold}) {
    LoaderOptions options;
    options.share_index = 1;
    options.share_count = 2;
    options.micro_batches = 3;
    for (int64_t member = 0; member < 4; ++member)
      options.samples.push_back(draw(rows, static_cast<uint64_t>(50 + member), member));
    const Sampler counts(203, 16, options.samples.front());
    Loader together(data, {}, counts, 5, 40, options);
    LoaderOptions lone = options;
    lone.samples.clear();
    std::vector<std::unique_ptr<Loader>> alone;
    for (const MemberSample& each : options.samples)
      alone.push_back(std::make_unique<Loader>(data, std::vector<std::shared_ptr<const Transform>>{},
                                               Sampler(203, 16, each), 5, 40, lone));
    int64_t batches = 0;
    while (const auto batch = together.next()) {
      ++batches;
      EXPECT_EQ(batch->at("byte").sizes(), (std::vector<int64_t>{4, batch->rows, 2, 3}));
      EXPECT_EQ(batch->at("byte").scalar_type(), at::kByte);
      for (size_t member = 0; member < alone.size(); ++member) {
        const auto own = alone[member]->next();
        ASSERT_TRUE(own);
        EXPECT_EQ(own->rows, batch->rows);
        EXPECT_EQ(own->first_row, batch->first_row);
        EXPECT_EQ(own->global_rows, batch->global_rows);
        EXPECT_EQ(own->micro.size(), batch->micro.size());
        for (const char* name : {"number", "byte"})
          EXPECT_TRUE(at::equal(batch->at(name)[static_cast<int64_t>(member)], own->at(name)));
      }
    }
    EXPECT_EQ(batches, 35);
  }
}

TEST(MemberSamples, EarlyStoppingDoesNotAffectOtherMembers) {
  const auto data = std::make_shared<Numbered>();
  LoaderOptions all, left;
  for (int64_t member : {0, 1, 2}) all.samples.push_back(draw(Rows::bootstrap, static_cast<uint64_t>(member), member));
  left.samples = {all.samples[0], all.samples[2]};
  const Sampler counts(203, 16, all.samples.front());
  Loader before(data, {}, counts, 0, 30, all), after(data, {}, counts, 17, 30, left);
  for (int step = 0; step < 17; ++step) before.next();
  for (int step = 17; step < 30; ++step) {
    const auto a = before.next(), b = after.next();
    EXPECT_TRUE(at::equal(a->at("number").index_select(0, at::tensor({0, 2}, at::kLong)), b->at("number")));
  }
}

TEST(MemberSamples, RefuseMembersWithDifferentNumbersOfRows) {
  LoaderOptions options;
  options.samples = {draw(Rows::all, 1), draw(Rows::subset, 1)};
  EXPECT_THROW(Loader(std::make_shared<Numbered>(), {}, Sampler(203, 16, 1), 0, 1, options), std::exception);
}

TEST(MemberSamples, HeldOutRowsAreEvaluatedOnce) {
  const auto data = std::make_shared<Numbered>();
  LoaderOptions options;
  for (int64_t member = 0; member < 7; ++member)
    options.samples.push_back(draw(Rows::fold, static_cast<uint64_t>(member), member));
  const Sampler counts(203, 16, options.samples.front());
  std::vector<std::vector<int64_t>> own(7);
  for (int64_t index : {0, 1}) {
    options.share_index = index;
    options.share_count = 2;
    Loader loader = Loader::held_out(data, {}, counts, 10, options);
    while (const auto batch = loader.next()) {
      ASSERT_EQ(batch->at("number").sizes(), (std::vector<int64_t>{7, batch->rows}));
      for (int64_t member = 0; member < 7; ++member)
        for (int64_t r = 0; r < batch->rows; ++r)
          own[static_cast<size_t>(member)].push_back(batch->at("number")[member][r].item<int64_t>());
    }
  }
  std::set<int64_t> all;
  for (int64_t member = 0; member < 7; ++member) {
    auto& rows = own[static_cast<size_t>(member)];
    auto expected = held_out(options.samples[static_cast<size_t>(member)], 203);
    std::sort(rows.begin(), rows.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(rows, expected);
    all.insert(rows.begin(), rows.end());
  }
  EXPECT_EQ(all.size(), 203u);  // 7 · 29

  Loader alone = Loader::held_out(data, {}, Sampler(203, 16, options.samples[2]), 100, {});
  const auto batch = alone.next();
  EXPECT_EQ(batch->at("number").sizes(), (std::vector<int64_t>{29}));
  EXPECT_FALSE(alone.next());
}

// Rows for `convoy verify`: within its steps an epoch ends with a batch whose shares differ.
TEST(MemberSamples, UnevenRowsEndAnEpochWithUnequalShares) {
  for (const Rows how : {Rows::all, Rows::bootstrap, Rows::subset, Rows::fold}) {
    for (const int64_t shares : {1, 2, 3, 8}) {
      for (const int64_t rows : {100, 1000, 100000000}) {
        const int64_t first = uneven_rows(draw(how, 3), rows, 16, 5, shares).value();
        const int64_t drawn = rows_drawn(draw(how, 3), first), last = drawn % 16;
        EXPECT_LE(first, rows);
        EXPECT_GE(last, shares) << drawn;
        EXPECT_TRUE(shares == 1 || last % shares != 0) << drawn << " over " << shares;
        EXPECT_LE(drawn / 16 + 1, 5) << drawn;
        EXPECT_GE(drawn, 16);
      }
    }
  }
  // Returns none if no batch can be uneven: too few steps or rows, or a row for each share.
  EXPECT_EQ(uneven_rows(draw(Rows::all, 3), 1000, 16, 1, 2), std::nullopt);
  EXPECT_EQ(uneven_rows(draw(Rows::all, 3), 12, 16, 5, 2), std::nullopt);
  EXPECT_EQ(uneven_rows(draw(Rows::all, 3), 1000, 4, 5, 4), std::nullopt);
  EXPECT_EQ(uneven_rows(draw(Rows::all, 3), 1000, 1, 5, 1), std::nullopt);
}

TEST(MemberSamples, AnUnevenBatchGivesRanksDifferentNumbersOfRows) {
  EXPECT_FALSE(has_uneven_batch(40, 40, 5, 2));
  EXPECT_TRUE(has_uneven_batch(41, 40, 5, 2)) << "the last batch has one row";
  EXPECT_FALSE(has_uneven_batch(42, 40, 5, 2));
  EXPECT_FALSE(has_uneven_batch(41, 40, 1, 2)) << "the run ends before the last batch";
  EXPECT_TRUE(has_uneven_batch(1000, 37, 1, 2)) << "every full batch";
  EXPECT_TRUE(has_uneven_batch(3, 40, 1, 2)) << "the only batch";
  EXPECT_FALSE(has_uneven_batch(41, 40, 5, 1));
}

}  // namespace
}  // namespace convoy
