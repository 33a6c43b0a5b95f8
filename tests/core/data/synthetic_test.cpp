// Synthetic data, Fashion-MNIST, transforms.
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/rows.h"
#include "core/data/sets/fashion_mnist.h"
#include "core/data/sets/synthetic.h"
#include "core/data/transforms.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

SyntheticVectors::Shape shape(bool classification) {
  SyntheticVectors::Shape made;
  made.classification = classification;
  made.rows = 1000;
  made.evaluate_rows = 100;
  made.features = {2, 8};
  made.classes = 4;
  made.targets = 3;
  made.noise = 0.1;
  return made;
}

TEST(FewRows, OfSyntheticDataAreFastAndNotCached) {
  const testing::WrittenFiles files;
  const auto made = [&](int64_t rows, bool few) {
    const Json options{{"kind", "interactions"}, {"rows", rows},           {"users", 5000},
                       {"items", 100'000},       {"context", 0},           {"groups", 4},
                       {"preference", 0.5},      {"user_exponent", 0.6},   {"item_exponent", 0.8},
                       {"negatives", 1},         {"candidates", 10},       {"ranking", "candidates"},
                       {"evaluate", {}},         {"cache", files.folder()}};
    return make_synthetic(Options(options), 1, few)->size(Split::train);
  };
  EXPECT_EQ(made(50'000'000, true), 131072);
  EXPECT_TRUE(std::filesystem::is_empty(files.folder())) << "no cache";
  EXPECT_EQ(made(1000, true), 1000);
  EXPECT_EQ(made(200'000, false), 200'000);
  EXPECT_FALSE(std::filesystem::is_empty(files.folder()));
}

TEST(Synthetic, RowsAreFunctionsOfTheSeed) {
  for (bool classification : {true, false}) {
    const SyntheticVectors data(shape(classification), 1), other(shape(classification), 2);
    const auto whole = data.gather_once(Split::train, at::arange(1000, at::kLong), 0);
    const auto some = data.gather_once(Split::train, at::tensor({999, 7}, at::kLong), 5);
    for (const char* name : {"features", "target"}) {
      EXPECT_TRUE(at::equal(some.at(name), whole.at(name).index_select(0, at::tensor({999, 7}, at::kLong))));
    }
    EXPECT_FALSE(at::equal(whole.at("features"),
                           other.gather_once(Split::train, at::arange(1000, at::kLong), 0).at("features")));
    EXPECT_FALSE(at::equal(whole.at("features").slice(0, 0, 100),
                           data.gather_once(Split::evaluate, at::arange(100, at::kLong), 0).at("features")));
  }
}

TEST(Synthetic, ClassesAreSeparable) {
  const SyntheticVectors data(shape(true), 1);
  const auto batch = data.gather_once(Split::train, at::arange(1000, at::kLong), 0);
  const auto x = batch.at("features").flatten(1);
  const auto y = batch.at("target");
  std::vector<at::Tensor> means;
  for (int64_t c = 0; c < 4; ++c) {
    EXPECT_GT(y.eq(c).sum().item<int64_t>(), 150);
    means.push_back(x.index({y.eq(c)}).mean(0));
  }
  EXPECT_TRUE(at::equal(at::cdist(x, at::stack(means)).argmin(1), y));
}

TEST(Synthetic, TargetsFollowFromFeatures) {
  const SyntheticVectors data(shape(false), 1);
  const auto batch = data.gather_once(Split::train, at::arange(1000, at::kLong), 0);
  const auto x = batch.at("features").flatten(1);
  const auto y = batch.at("target");
  const auto map = at::linalg_solve(x.t().mm(x), x.t().mm(y));
  EXPECT_LT((x.mm(map) - y).pow(2).mean().item<double>(), 0.02);
  EXPECT_GT(y.pow(2).mean().item<double>(), 0.2);
}

TEST(Synthetic, InteractionsAreZipfWithAKnownPreference) {
  SyntheticInteractions sizes;
  sizes.rows = 20000;
  sizes.users = 500;
  sizes.items = 400;
  sizes.context = 2;
  sizes.groups = 8;
  const auto planted = plant_interactions(sizes, 1), again = plant_interactions(sizes, 1);
  EXPECT_TRUE(at::equal(planted.all.item, again.all.item));
  EXPECT_EQ(planted.split.train.size(), 20000u);
  EXPECT_GT(planted.split.held_out.size(), 490u);
  const auto count = at::bincount(planted.all.item.slice(0, 0, 20000).to(at::kLong), {}, 400);
  EXPECT_GT(count.slice(0, 0, 40).sum().item<int64_t>(), 6000);  // a tenth of the items has over 30 % of the rows
  EXPECT_GE(planted.all.context.min().item<float>(), 0.f);
  EXPECT_LT(planted.all.context.max().item<float>(), 1.f);
  // For each user and each half of the first context column, four of five items are from one of eight groups.
  const auto low = planted.all.context.select(1, 0).lt(0.5);
  const auto group = planted.all.item.remainder(8).to(at::kLong);
  int64_t best = 0, all = 0;
  for (int64_t u = 0; u < 50; ++u) {
    const auto own = group.index({low.logical_and(planted.all.user.eq(u))});
    best += at::bincount(own, {}, 8).max().item<int64_t>();
    all += own.numel();
  }
  EXPECT_NEAR(double(best) / double(all), 0.8 + 0.2 / 8, 0.05);
  // A held-out item is never a training row of its user.
  const Positives positives(500, 400, planted.all.user.const_data_ptr<int32_t>(),
                            planted.all.item.const_data_ptr<int32_t>(), planted.split.train);
  for (int32_t row : planted.split.held_out) {
    EXPECT_FALSE(positives.contains(planted.all.user[row].item<int32_t>(), planted.all.item[row].item<int32_t>()));
  }
}

TEST(FashionMnist, ReadsThePublishedFiles) {
  const char* const folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const FashionMnist data(folder);
  EXPECT_EQ(data.size(Split::train), 60000);
  EXPECT_EQ(data.size(Split::evaluate), 10000);
  const auto batch = data.gather_once(Split::evaluate, at::arange(10000, at::kLong), 0);
  EXPECT_EQ(batch.at("features").sizes(), (std::vector<int64_t>{10000, 1, 28, 28}));
  EXPECT_EQ(batch.at("features").max().item<float>(), 1.f);
  EXPECT_EQ(batch.at("features").min().item<float>(), 0.f);
  EXPECT_TRUE(at::bincount(batch.at("target")).eq(1000).all().item<bool>());  // each class has a thousand
  EXPECT_EQ(data.schema().fields.at("target").cardinality, 10);
}

// A model's input must not depend on the storage of the batch.
TEST(FashionMnist, BytesEqualFloatsAfterConversion) {
  const char* const folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const FashionMnist floats(folder), bytes(folder, true);
  const auto rows = at::tensor({3, 9999, 3, 17}, at::kLong);
  const Batch a = floats.gather_once(Split::evaluate, rows, 0), b = bytes.gather_once(Split::evaluate, rows, 0);
  EXPECT_EQ(b.at("features").scalar_type(), at::kByte);
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    EXPECT_TRUE(at::equal(a.at("features").to(dtype), from_bytes(b.at("features"), dtype))) << dtype;
  EXPECT_TRUE(at::equal(a.at("target"), b.at("target")));
}

TEST(FashionMnist, NamesThePackageToInstall) {
  try {
    FashionMnist("/nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("apt-get install dataset-fashion-mnist"));
  }
}

Batch images(int64_t rows) {
  Batch batch;
  batch.rows = rows;
  batch.tensors = {{"features", at::arange(rows * 2 * 4 * 5, at::kFloat).view({rows, 2, 4, 5}) + 1}};
  return batch;
}

TEST(Transforms, TreatBytesLikeFloats) {
  const auto samples = at::arange(40, at::kLong);
  const Flip flip(0.5);
  const Shift shift(2);
  const Normalise normalise({0.3}, {0.2});
  const Noise noise(0.1);
  for (const Transform* transform : std::vector<const Transform*>{&flip, &shift, &normalise, &noise}) {
    Batch bytes, floats;
    bytes.tensors = {{"features", at::arange(40 * 2 * 4 * 5).remainder(256).to(at::kByte).view({40, 2, 4, 5})}};
    floats.tensors = {{"features", from_bytes(bytes.at("features"), at::kFloat)}};
    const at::Tensor before = floats.at("features").clone();
    transform->apply(bytes, samples, 1, 0);
    transform->apply(floats, samples, 1, 0);
    const bool moves = transform == &flip || transform == &shift;
    EXPECT_EQ(bytes.at("features").scalar_type(), moves ? at::kByte : at::kFloat);
    const at::Tensor after = moves ? from_bytes(bytes.at("features"), at::kFloat) : bytes.at("features");
    EXPECT_TRUE(at::equal(after, floats.at("features")));
    EXPECT_FALSE(at::equal(before, floats.at("features")));
  }
}

TEST(Transforms, FlipMirrorsHalfOfTheRowsByRowNumber) {
  Batch batch = images(200);
  const auto before = batch.at("features").clone();
  Flip(0.5).apply(batch, at::arange(200, at::kLong), 1, 0);
  const auto kept = (batch.at("features") == before).flatten(1).all(1);
  const auto flipped = (batch.at("features") == before.flip(-1)).flatten(1).all(1);
  EXPECT_TRUE(kept.logical_xor(flipped).all().item<bool>());
  EXPECT_NEAR(double(flipped.sum().item<int64_t>()), 100, 30);
  // Row 3 has the same result at any position in a batch.
  Batch alone = images(1);
  Flip(0.5).apply(alone, at::tensor({3}, at::kLong), 1, 0);
  EXPECT_EQ(at::equal(alone.at("features"), images(1).at("features")), kept[3].item<bool>());
}

TEST(Transforms, ShiftMovesAndFillsWithZeros) {
  Batch batch = images(300);
  const auto before = batch.at("features").clone();
  Shift(2).apply(batch, at::arange(300, at::kLong), 1, 0);
  for (int64_t r = 0; r < 300; ++r) {
    bool found = false;
    for (int64_t down = -2; down <= 2 && !found; ++down) {
      for (int64_t right = -2; right <= 2 && !found; ++right) {
        auto moved = at::zeros({2, 4, 5});
        moved.slice(1, std::max<int64_t>(down, 0), 4 + std::min<int64_t>(down, 0))
            .slice(2, std::max<int64_t>(right, 0), 5 + std::min<int64_t>(right, 0))
            .copy_(before[r]
                       .slice(1, std::max<int64_t>(-down, 0), 4 + std::min<int64_t>(-down, 0))
                       .slice(2, std::max<int64_t>(-right, 0), 5 + std::min<int64_t>(-right, 0)));
        found = at::equal(batch.at("features")[r], moved);
      }
    }
    EXPECT_TRUE(found) << "row " << r;
  }
  EXPECT_THROW(Shift(4).apply(batch, at::arange(300, at::kLong), 1, 0), Error);
}

TEST(Transforms, NormaliseIsPerChannelAlsoInEvaluation) {
  Batch batch = images(3);
  const auto before = batch.at("features").clone();
  const Normalise normalise({1, 2}, {2, 4});
  EXPECT_TRUE(normalise.evaluation_too());
  EXPECT_FALSE(Flip(1).evaluation_too() || Shift(1).evaluation_too() || Noise(1).evaluation_too());
  normalise.apply(batch, at::arange(3, at::kLong), 1, 0);
  EXPECT_TRUE(at::allclose(batch.at("features").select(1, 1), (before.select(1, 1) - 2) / 4));
  EXPECT_THROW(Normalise({1, 2, 3}, {1}).apply(batch, at::arange(3, at::kLong), 1, 0), Error);
}

TEST(Transforms, NoiseIsNormalAndKeyed) {
  Batch one = images(400), two = images(400), later = images(400);
  const auto before = one.at("features").clone();
  Noise(0.5).apply(one, at::arange(400, at::kLong), 1, 0);
  Noise(0.5).apply(two, at::arange(400, at::kLong), 1, 0);
  Noise(0.5).apply(later, at::arange(400, at::kLong), 1, 1);
  EXPECT_TRUE(at::equal(one.at("features"), two.at("features")));
  EXPECT_FALSE(at::equal(one.at("features"), later.at("features")));
  EXPECT_NEAR((one.at("features") - before).std().item<double>(), 0.5, 0.02);
  EXPECT_NEAR((one.at("features") - before).mean().item<double>(), 0, 0.02);
}

TEST(Transforms, EmptySharesAndWrongFeatures) {
  Batch none = images(0);
  const auto nobody = at::empty({0}, at::kLong);
  Flip(1).apply(none, nobody, 1, 0);
  Shift(1).apply(none, nobody, 1, 0);
  Normalise({1}, {1}).apply(none, nobody, 1, 0);
  Noise(1).apply(none, nobody, 1, 0);
  Batch flat;
  flat.rows = 1;
  flat.tensors = {{"features", at::zeros({1, 7})}};
  EXPECT_THROW(Flip(1).apply(flat, at::zeros({1}, at::kLong), 1, 0), Error);
  EXPECT_THROW(Noise(1).apply(*std::make_unique<Batch>(), at::zeros({1}, at::kLong), 1, 0), Error);
}

}  // namespace
}  // namespace convoy
