// Split, negatives, candidates: valid draws.
#include "core/data/sets/interactions.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/random_keys.h"
#include "core/data/sets/candidates.h"

namespace convoy {
namespace {

constexpr int64_t users = 20;
constexpr int64_t items = 60;

// User u takes items u, u+1, …, at decreasing times: the latest is item u.
Interactions ladder(int64_t each = 10) {
  Interactions all;
  all.users = users;
  all.items = items;
  all.user = at::arange(users, at::kInt).repeat_interleave(each);
  all.item = (all.user + at::arange(each, at::kInt).repeat({users})).remainder(items).to(at::kInt);
  all.time = -at::arange(each, at::kDouble).repeat({users});
  all.context = at::arange(users * each * 3, at::kFloat).view({users * each, 3});
  return all;
}

InteractionsDataset dataset(RankingOptions options = {}, uint64_t seed = 1, Holdout holdout = Holdout::latest) {
  const Interactions all = ladder();
  if (options.candidates == 99) options.candidates = 30;
  return InteractionsDataset(all, split_interactions(all, holdout, seed), options, seed);
}

at::Tensor all_rows(const Dataset& data, Split split) { return at::arange(data.size(split), at::kLong); }

TEST(Interactions, HoldsOutTheLatest) {
  const Interactions all = ladder();
  const auto split = split_interactions(all, Holdout::latest, 1);
  ASSERT_EQ(split.held_out.size(), size_t(users));
  EXPECT_EQ(split.train.size(), size_t(users * 9));
  for (int64_t u = 0; u < users; ++u) EXPECT_EQ(split.held_out[size_t(u)], u * 10);
}

TEST(Interactions, HoldsOutTheLastLineOfEqualTimes) {
  Interactions all = ladder();
  all.time.zero_();
  EXPECT_EQ(split_interactions(all, Holdout::latest, 1).held_out[0], 9);
}

TEST(Interactions, RandomHoldoutFollowsTheSeedAndNoneKeepsAllRows) {
  const Interactions all = ladder();
  const auto one = split_interactions(all, Holdout::random, 1), two = split_interactions(all, Holdout::random, 2);
  EXPECT_EQ(one.held_out, split_interactions(all, Holdout::random, 1).held_out);
  EXPECT_NE(one.held_out, two.held_out);
  EXPECT_EQ(one.train.size() + one.held_out.size(), size_t(users * 10));
  EXPECT_TRUE(split_interactions(all, Holdout::none, 1).held_out.empty());
}

// Rows of each user in `rows`.
std::vector<int64_t> rows_by_user(const Interactions& all, const std::vector<int32_t>& rows) {
  std::vector<int64_t> counts(size_t(all.users));
  for (int32_t row : rows) ++counts[size_t(all.user[row].item<int64_t>())];
  return counts;
}

TEST(Interactions, AFractionOfEachUserIsHeldOut) {
  Interactions all = ladder();
  all.users = users + 1;
  all.user[5] = int(users);  // the only interaction of the added user; user 0 keeps 9
  const auto latest = split_interactions(all, Holdout::latest, 1, 0.3);
  std::vector<int64_t> expected(size_t(users), 3);
  expected.push_back(0);
  EXPECT_EQ(rows_by_user(all, latest.held_out), expected);
  EXPECT_EQ(std::vector<int32_t>(latest.held_out.begin() + 3, latest.held_out.begin() + 6),
            (std::vector<int32_t>{12, 11, 10}))
      << "in time, which falls from row to row";
  EXPECT_TRUE(std::is_sorted(latest.train.begin(), latest.train.end()));
  EXPECT_EQ(latest.train.size() + latest.held_out.size(), size_t(all.size()));

  const auto one = split_interactions(all, Holdout::random, 1, 0.3),
             two = split_interactions(all, Holdout::random, 2, 0.3);
  EXPECT_EQ(rows_by_user(all, one.held_out), expected);
  EXPECT_NE(one.held_out, two.held_out);
  EXPECT_NE(one.held_out, latest.held_out);
}

TEST(Interactions, EveryInteractionIsDrawnEquallyOften) {
  const Interactions all = ladder();
  std::vector<int64_t> drawn(10);
  for (uint64_t seed = 0; seed < 100; ++seed)
    for (int32_t row : split_interactions(all, Holdout::random, seed, 0.3).held_out) ++drawn[size_t(row % 10)];
  for (int64_t count : drawn) EXPECT_NEAR(double(count), 600, 100) << "of 2,000 with probability 0.3";
}

TEST(Interactions, AFractionNeverTakesAllOfAUserNorNone) {
  Interactions all = ladder();
  EXPECT_EQ(rows_by_user(all, split_interactions(all, Holdout::latest, 1, 0.001).held_out),
            std::vector<int64_t>(size_t(users), 1));
  EXPECT_EQ(rows_by_user(all, split_interactions(all, Holdout::random, 1, 0.999).held_out),
            std::vector<int64_t>(size_t(users), 9));
}

TEST(Interactions, ASplitByTimeHoldsOutTheLatestOfAll) {
  Interactions all = ladder();
  all.time = at::arange(all.size(), at::kDouble);
  all.time.narrow(0, 0, 10).fill_(1e6);  // all of user 0 is late
  const auto split = split_interactions(all, Holdout::time, 1, 0.1);
  EXPECT_TRUE(split.held_out.empty()) << "users 0 and 19 have no earlier interaction to train on";
  EXPECT_EQ(split.train.size(), 180u);
  const auto more = split_interactions(all, Holdout::time, 1, 0.075);
  EXPECT_EQ(more.held_out, (std::vector<int32_t>{195, 196, 197, 198, 199}));
  EXPECT_EQ(more.train.size(), 185u);
}

TEST(Interactions, AnEvaluationRowHasAllHeldOutItemsOfAUserFirst) {
  RankingOptions options;
  options.full = true;
  options.fraction = 0.3;
  Interactions all = ladder();
  all.item[11] = all.item[10];  // the same item twice
  const InteractionsDataset data(all, Holdout::latest, options, 1);
  ASSERT_EQ(data.size(Split::evaluate), users);
  const Batch batch = data.gather_once(Split::evaluate, at::tensor({1, 4}, at::kLong), 0);
  EXPECT_TRUE(at::equal(batch.at("held_out"), at::tensor({2, 3}, at::kLong)));
  const auto target = batch.at("target");
  EXPECT_TRUE(at::equal(target.sum(-1), at::tensor({2.f, 3.f})));
  EXPECT_TRUE(at::equal(target.narrow(1, 0, 2), at::ones({2, 2})));
  const auto item = batch.at("item"), excluded = batch.at("excluded");
  EXPECT_TRUE(at::equal(item[1].narrow(0, 0, 3), at::tensor({4, 5, 6}, at::kLong)));
  for (int64_t row = 0; row < 2; ++row) {
    EXPECT_TRUE(at::equal(std::get<0>(item[row].sort()), at::arange(items, at::kLong))) << "every item once";
    const int64_t u = row == 0 ? 1 : 4;
    for (int64_t i = 0; i < items; ++i) {
      const int64_t rung = (item[row][i].item<int64_t>() - u + items) % items;
      EXPECT_EQ(excluded[row][i].item<bool>(), rung >= 3 && rung < 10) << "row " << row << ", rung " << rung;
    }
  }
  EXPECT_EQ(batch.at("context")[0][0].item<float>(), 12 * 3.f) << "of the earliest held-out interaction";
  EXPECT_EQ(data.interactions()->size(), users * 10);
}

TEST(Interactions, KeepsTheOnlyInteractionOfAUser) {
  Interactions all = ladder();
  all.users = users + 1;
  all.user[5] = int(users);
  const auto split = split_interactions(all, Holdout::latest, 1);
  EXPECT_EQ(split.held_out.size(), size_t(users));
}

TEST(Interactions, ExplainsLatestWithoutATimeColumn) {
  Interactions all = ladder();
  all.time = at::Tensor();
  EXPECT_THROW(split_interactions(all, Holdout::latest, 1), Error);
}

TEST(Interactions, ATrainingRowIsAPositiveWithItsNegatives) {
  const auto data = dataset();
  const Batch batch = data.gather_once(Split::train, all_rows(data, Split::train), 0);
  const auto& user = batch.at("user");
  const auto& item = batch.at("item");
  ASSERT_EQ(item.sizes(), (std::vector<int64_t>{180, 5}));
  EXPECT_EQ(batch.at("context").sizes(), (std::vector<int64_t>{180, 3}));
  EXPECT_TRUE(at::equal(batch.at("target"), at::tensor({1.f, 0.f, 0.f, 0.f, 0.f}).expand({180, 5})));
  for (int64_t r = 0; r < 180; ++r) {
    const int64_t u = user[r].item<int64_t>();
    EXPECT_EQ(u, r / 9);
    EXPECT_EQ(item[r][0].item<int64_t>(), (u + 1 + r % 9) % items);  // item u itself is held out
    EXPECT_EQ(batch.at("context")[r][0].item<float>(), float((u * 10 + 1 + r % 9) * 3));
  }
}

TEST(Interactions, NegativesExcludeOnlyTrainingPositives) {
  const auto data = dataset();
  int64_t held_out_drawn = 0;
  std::set<int64_t> drawn;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const Batch batch = data.gather_once(Split::train, all_rows(data, Split::train), epoch);
    const auto* item = batch.at("item").const_data_ptr<int64_t>();
    const auto* user = batch.at("user").const_data_ptr<int64_t>();
    for (int64_t r = 0; r < batch.rows; ++r) {
      for (int64_t n = 1; n < 5; ++n) {
        const int64_t rung = (item[r * 5 + n] - user[r] + items) % items;  // 0: held out, 1 … 9: positives
        EXPECT_TRUE(rung == 0 || rung > 9) << "user " << user[r] << " item " << item[r * 5 + n];
        held_out_drawn += rung == 0;
        drawn.insert(item[r * 5 + n]);
      }
    }
  }
  // 14,400 draws over 51 items each: 282 draws of the held-out item are expected.
  EXPECT_GT(held_out_drawn, 200);
  EXPECT_LT(held_out_drawn, 370);
  EXPECT_EQ(drawn.size(), size_t(items));
}

TEST(Interactions, NegativesDependOnSeedEpochAndRowOnly) {
  const auto data = dataset();
  const auto whole = data.gather_once(Split::train, all_rows(data, Split::train), 3).at("item");
  const auto some = data.gather_once(Split::train, at::tensor({170, 3, 77}, at::kLong), 3).at("item");
  EXPECT_TRUE(at::equal(some, whole.index_select(0, at::tensor({170, 3, 77}, at::kLong))));
  EXPECT_FALSE(at::equal(whole, data.gather_once(Split::train, all_rows(data, Split::train), 4).at("item")));
  EXPECT_FALSE(at::equal(whole, dataset({}, 2).gather_once(Split::train, all_rows(data, Split::train), 3).at("item")));
}

TEST(Interactions, CandidatesAreDistinctUntouchedAndFixed) {
  const auto data = dataset();
  ASSERT_EQ(data.size(Split::evaluate), users);
  const Batch batch = data.gather_once(Split::evaluate, all_rows(data, Split::evaluate), 0);
  const auto& item = batch.at("item");
  ASSERT_EQ(item.sizes(), (std::vector<int64_t>{users, 31}));
  for (int64_t u = 0; u < users; ++u) {
    EXPECT_EQ(item[u][0].item<int64_t>(), u);
    std::set<int64_t> seen{u};
    for (int64_t c = 1; c < 31; ++c) {
      const int64_t candidate = item[u][c].item<int64_t>();
      EXPECT_GT((candidate - u + items) % items, 9);
      EXPECT_TRUE(seen.insert(candidate).second);
    }
  }
  EXPECT_TRUE(at::equal(item, data.gather_once(Split::evaluate, all_rows(data, Split::evaluate), 5).at("item")));
  EXPECT_EQ(batch.at("target").sum().item<float>(), float(users));
}

TEST(Interactions, FullRankingHasEveryItemOnceAndExcludesTrainingPositives) {
  RankingOptions options;
  options.full = true;
  const auto data = dataset(options);
  const Batch batch = data.gather_once(Split::evaluate, all_rows(data, Split::evaluate), 0);
  const auto& item = batch.at("item");
  ASSERT_EQ(item.sizes(), (std::vector<int64_t>{users, items}));
  EXPECT_TRUE(at::equal(std::get<0>(item.sort(1)), at::arange(items).expand({users, items})));
  const auto rung = (item - batch.at("user").unsqueeze(1) + items).remainder(items);
  EXPECT_TRUE(at::equal(batch.at("excluded"), rung.ge(1).logical_and(rung.le(9))));
  EXPECT_TRUE(at::equal(item.select(1, 0), batch.at("user")));
}

// Item i has the feature 100 + i, user u has 200 + u and 300 + u.
Interactions with_features() {
  Interactions all = ladder();
  all.item_features = (100 + at::arange(items, at::kFloat)).unsqueeze(1);
  all.user_features = at::stack({200 + at::arange(users, at::kFloat), 300 + at::arange(users, at::kFloat)}, 1);
  return all;
}

TEST(Interactions, NegativesHaveTheirItemsFeatures) {
  for (const bool full : {false, true}) {
    RankingOptions options;
    options.full = full;
    options.candidates = 30;
    const Interactions all = with_features();
    const InteractionsDataset data(all, split_interactions(all, Holdout::latest, 1), options, 1);
    for (Split split : {Split::train, Split::evaluate}) {
      const Batch batch = data.gather_once(split, all_rows(data, split), 2);
      const at::Tensor &item = batch.at("item"), &user = batch.at("user");
      EXPECT_TRUE(at::equal(batch.at("item_features"), (100 + item.to(at::kFloat)).unsqueeze(-1)));
      EXPECT_TRUE(at::equal(batch.at("user_features").select(1, 1), 300 + user.to(at::kFloat)));
      EXPECT_EQ(batch.at("user_features").sizes(), (std::vector<int64_t>{batch.rows, 2}));
    }
    const Schema schema = data.schema();
    EXPECT_EQ(schema.fields.at("item_features").shape, (std::vector<int64_t>{5, 1}));
    EXPECT_EQ(schema.fields.at("user_features").shape, (std::vector<int64_t>{2}));
    EXPECT_EQ(data.gather_once(Split::train, at::empty({0}, at::kLong), 0).at("item_features").size(0), 0);
  }
}

TEST(Interactions, EvaluatesASampleOfUsers) {
  RankingOptions options;
  options.evaluate_users = 7;
  const auto one = dataset(options, 1), other = dataset(options, 2);
  ASSERT_EQ(one.size(Split::evaluate), 7);
  EXPECT_EQ(one.size(Split::train), users * 9);
  const auto users_of = [](const Dataset& data) {
    return data.gather_once(Split::evaluate, at::arange(7, at::kLong), 0).at("user");
  };
  EXPECT_TRUE(at::equal(users_of(one), users_of(dataset(options, 1))));
  EXPECT_FALSE(at::equal(users_of(one), users_of(other)));
}

TEST(Interactions, SupportsEmptyShares) {
  const auto data = dataset();
  for (Split split : {Split::train, Split::evaluate}) {
    const Batch batch = data.gather_once(split, at::empty({0}, at::kLong), 0);
    EXPECT_EQ(batch.rows, 0);
    EXPECT_EQ(batch.at("item").size(0), 0);
  }
}

TEST(Interactions, ReportsTooFewItemsAtTheStart) {
  const Interactions all = ladder(items - 1);  // one item is untouched: enough for negatives, too few for candidates
  const auto split = split_interactions(all, Holdout::latest, 1);
  RankingOptions options;
  options.candidates = 5;
  EXPECT_THROW(InteractionsDataset(all, split, options, 1), Error);
  options.full = true;
  const InteractionsDataset data(all, split, options, 1);
  const auto item = data.gather_once(Split::train, at::arange(data.size(Split::train), at::kLong), 0).at("item");
  const auto user = at::arange(users).repeat_interleave(items - 2).unsqueeze(1);
  const auto rung = (item.slice(1, 1) - user + items).remainder(items);
  EXPECT_TRUE(rung.eq(0).logical_or(rung.eq(items - 1)).all().item<bool>());

  const Interactions everything = ladder(items);
  EXPECT_THROW(InteractionsDataset(everything, split_interactions(everything, Holdout::none, 1), {}, 1), Error);
}

TEST(Positives, HashedAndExactEqualASet) {
  for (int64_t many : {100, 400000}) {  // users × items below and above what an exact bitmap holds
    const int64_t wide = 1000;
    std::vector<int32_t> user, item, rows;
    std::set<std::pair<int32_t, int32_t>> pairs;
    for (int32_t i = 0; i < 5000; ++i) {
      user.push_back(int32_t(random_below(7, uint64_t(i) * 2, uint64_t(many))));
      item.push_back(int32_t(random_below(7, uint64_t(i) * 2 + 1, uint64_t(wide))));
      if (i % 3 != 0) {
        rows.push_back(i);
        pairs.emplace(user.back(), item.back());
      }
    }
    const Positives positives(many, wide, user.data(), item.data(), rows);
    int64_t counted = 0;
    for (size_t i = 0; i < user.size(); ++i) {
      EXPECT_EQ(positives.contains(user[i], item[i]), pairs.count({user[i], item[i]}) == 1);
      const auto other = int32_t((item[i] + 17) % wide);
      EXPECT_EQ(positives.contains(user[i], other), pairs.count({user[i], other}) == 1);
    }
    for (int32_t u = 0; u < many; ++u) counted += positives.count(u);
    EXPECT_EQ(counted, int64_t(pairs.size()));
    int32_t expected = 0;
    for (int64_t position = 0; position < wide - positives.count(user[1]); ++position, ++expected) {
      while (positives.contains(user[1], expected)) ++expected;
      ASSERT_EQ(positives.missing(user[1], position), expected);
    }
  }
}

}  // namespace
}  // namespace convoy
