// Recommendation lists in each file format, for the users of a file or for all users; nothing remains of a list that
// could not be written.
#include "core/ranking/recommender.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/ranking/pair_scorer.h"
#include "tests/support/failing_files.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecommenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("recommender-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string text(const std::string& name) const { return read_file(path(name)); }
  size_t files() const { return size_t(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())); }

  fs::path folder_;
};

// Three users, five items. User u took items u and u + 1, item u last, with the context (u, u − 1).
Interactions few() {
  Interactions all;
  all.users = 3;
  all.items = 5;
  all.user = at::tensor({0, 0, 1, 1, 2, 2}, at::kInt);
  all.item = at::tensor({1, 0, 2, 1, 3, 2}, at::kInt);
  all.time = at::tensor({1, 2, 1, 2, 1, 2}, at::kDouble);
  all.context = at::tensor({9.f, 9.f, 0.f, -1.f, 9.f, 9.f, 1.f, 0.f, 9.f, 9.f, 2.f, 1.f}).view({6, 2});
  all.context_names = {"hour", "day"};
  all.user_names = NameList(std::vector<std::string>{"ann", "b,b", "cé"});
  all.item_names = NameList(std::vector<std::string>{"i0", "i1", "i2", "i3", "i4"});
  return all;
}

// The score of item i is i · first context + second context.
class ByContext : public PairScorer {
 public:
  at::ScalarType dtype() const override { return at::kFloat; }
  TensorList row_terms(const Batch& rows) override { return {rows.at("context")}; }
  TensorList item_terms(const at::Tensor& ids, const at::Tensor&) override { return {ids.to(at::kFloat)}; }
  void scores(const TensorList& rows, const TensorList& items, const at::Tensor& out) override {
    out.copy_(rows[0].narrow(1, 0, 1) * items[0] + rows[0].narrow(1, 1, 1));
  }
};

// Arguments of the command: the options, the destination, and whether to replace it.
struct Wanted : RecommendOptions {
  std::string to;
  bool replace = false;
};

RecommendReport recommend(const Interactions& all, PairScorer& scorer, const Wanted& wanted,
                          FileSystem& files = system_files()) {
  OutputFile out(wanted.to, wanted.replace, files);
  return convoy::recommend(all, scorer, wanted, out);
}

Wanted options_for(const std::string& to) {
  Wanted options;
  options.to = to;
  options.k = 2;
  options.user_column = "who";
  options.item_column = "what";
  return options;
}

template <class Action>
std::pair<Failure, std::string> failure_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {Failure::internal, "no failure"};
}

TEST_F(RecommenderTest, CsvOfAllUsersWithTheirLastContext) {
  ByContext scorer;
  const Interactions all = few();
  const RecommendReport report = recommend(all, scorer, options_for(path("top.csv")));
  // User 0: all scores are −1, so the smallest ids that are new. User 1: i + 0. User 2: 2·i + 1.
  EXPECT_EQ(text("top.csv"),
            "who,rank,what,score\n"
            "ann,1,i2,-1\nann,2,i3,-1\n"
            "\"b,b\",1,i4,4\n\"b,b\",2,i3,3\n"
            "cé,1,i4,9\ncé,2,i1,3\n");
  EXPECT_EQ(report.users, 3);
  EXPECT_EQ(report.shorter, 0);
  EXPECT_EQ(files(), 1u);
}

TEST_F(RecommenderTest, ContextsOfTheFileAndAUserTwice) {
  ByContext scorer;
  const Interactions all = few();
  Wanted options = options_for(path("top.jsonl"));
  options.users = write("users.csv", "day,who,note,hour\n0.5,ann,x,1\n0,ann,y,-1\n");
  const RecommendReport report = recommend(all, scorer, options);
  EXPECT_EQ(text("top.jsonl"),
            "{\"who\":\"ann\",\"what\":[\"i4\",\"i3\"],\"score\":[4.5,3.5]}\n"
            "{\"who\":\"ann\",\"what\":[\"i2\",\"i3\"],\"score\":[-2,-3]}\n");
  EXPECT_TRUE(report.contexts_from_file);
  EXPECT_EQ(report.ignored_columns, std::vector<std::string>{"note"});
}

TEST_F(RecommenderTest, AFileOfIdsAloneAndShorterLists) {
  ByContext scorer;
  const Interactions all = few();
  Wanted options = options_for(path("top.csv"));
  options.users = write("ids.txt", "cé\nann\n");
  options.k = 5;
  const RecommendReport report = recommend(all, scorer, options);
  EXPECT_EQ(report.users, 2);
  EXPECT_EQ(report.shorter, 2) << "each has two of the five items";
  EXPECT_THAT(text("top.csv"), HasSubstr("cé,3,i0,1\nann,1,i2,-1\n"));
  options.include_seen = options.replace = true;
  EXPECT_EQ(recommend(all, scorer, options).shorter, 0);
  EXPECT_THAT(text("top.csv"), HasSubstr("cé,5,i0,1\nann,1,i0,-1\n"));
}

TEST_F(RecommenderTest, QuotesInIdsAreWrittenAsTheyWere) {
  ByContext scorer;
  Interactions all = few();
  all.user_names = NameList(std::vector<std::string>{"a \"\"b\"\"", "c", "d"});  // as a reader keeps "a ""b"""
  Wanted options = options_for(path("top.csv"));
  options.k = 1;
  recommend(all, scorer, options);
  EXPECT_THAT(text("top.csv"), HasSubstr("\"a \"\"b\"\"\",1,i2,-1\n"));
  options.to = path("top.jsonl");
  recommend(all, scorer, options);
  EXPECT_THAT(text("top.jsonl"), HasSubstr("{\"who\":\"a \\\"b\\\"\","));
}

TEST_F(RecommenderTest, NpyHasARecordForEachUser) {
  ByContext scorer;
  const Interactions all = few();
  Wanted options = options_for(path("top.npy"));
  options.k = 4;
  recommend(all, scorer, options);
  const std::string file = text("top.npy");
  const size_t record = 4 * 3 + 4 * (4 * 2) + 4 * 4;  // three characters, four ids of two characters, four scores
  uint32_t length = 0;
  std::memcpy(&length, file.data() + 8, sizeof length);
  EXPECT_EQ((12 + length) % 64, 0u);
  EXPECT_THAT(file.substr(12, length), HasSubstr("[('who', '<U3'), ('what', '<U2', (4,)), ('score', '<f4', (4,))]"));
  EXPECT_THAT(file.substr(12, length), HasSubstr("'shape': (3,)"));
  ASSERT_EQ(file.size(), 12 + length + 3 * record);
  const char* third = file.data() + 12 + length + 2 * record;
  char32_t name[3];
  float scores[4];
  std::memcpy(name, third, sizeof name);
  std::memcpy(scores, third + record - sizeof scores, sizeof scores);
  EXPECT_EQ(std::u32string(name, 3), std::u32string(U"cé\0", 3));
  EXPECT_EQ(scores[0], 9);
  EXPECT_TRUE(std::isnan(scores[3])) << "three items are new to the user";
}

TEST_F(RecommenderTest, DataWithoutIdsHasNumbers) {
  ByContext scorer;
  Interactions all = few();
  all.user_names = all.item_names = NameList();
  Wanted options = options_for(path("top.csv"));
  options.users = write("ids.csv", "who\n2\n");
  recommend(all, scorer, options);
  EXPECT_EQ(text("top.csv"), "who,rank,what,score\n2,1,4,9\n2,2,1,3\n");
  options.users = write("ids.csv", "who\n2\n3\n");
  options.to = path("other.csv");
  EXPECT_THAT(failure_of([&] { recommend(all, scorer, options); }).second, HasSubstr("ids.csv:3: user is not among"));
}

TEST_F(RecommenderTest, ReportsMistakesAndLeavesNoFile) {
  ByContext scorer;
  const Interactions all = few();
  const auto refused = [&](const Wanted& options) { return failure_of([&] { recommend(all, scorer, options); }); };
  Wanted options = options_for(path("top.csv"));
  options.users = write("users.csv", "who\nann\nzoe\nyan\n");
  auto failure = refused(options);
  EXPECT_EQ(failure.first, Failure::corrupt_data);
  EXPECT_THAT(failure.second, HasSubstr("users.csv:3: user 'zoe' is not among the 3 users of the training data, nor "
                                        "are 1 more; leave them out"));
  options.users = write("users.csv", "who,hour\nann,1\n");
  EXPECT_THAT(refused(options).second, HasSubstr("lacks day"));
  options.users = write("users.csv", "who,hour,day\nann,1,x\n");
  EXPECT_THAT(refused(options).second, HasSubstr("users.csv:2:7: 'x' is not a number"));
  options.users = write("users.csv", "id,other\nann,1\n");
  EXPECT_THAT(refused(options).second, HasSubstr("none of them is 'who'"));
  options.users = "";
  options.k = 6;
  failure = refused(options);
  EXPECT_EQ(failure.first, Failure::command_line);
  EXPECT_THAT(failure.second, HasSubstr("--k: is 6, and the run has 5 items"));
  options.k = 2;
  options.to = path("top.txt");
  EXPECT_EQ(refused(options).first, Failure::command_line);
  options.to = write("top.csv", "mine");
  failure = refused(options);
  EXPECT_EQ(failure.first, Failure::output);
  EXPECT_THAT(failure.second, HasSubstr("is kept"));
  EXPECT_EQ(text("top.csv"), "mine");
  EXPECT_EQ(files(), 2u);
}

TEST_F(RecommenderTest, ScoresThatAreNotNumbersAreAnError) {
  ByContext scorer;
  Interactions all = few();
  all.context = at::full({6, 2}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  const auto failure = failure_of([&] { recommend(all, scorer, options_for(path("top.csv"))); });
  EXPECT_EQ(failure.first, Failure::training);
  EXPECT_THAT(failure.second, HasSubstr("for user ann are not numbers"));
  EXPECT_EQ(files(), 0u);
}

// A block of users with many items takes long, so progress is also reported within a block.
TEST_F(RecommenderTest, ProgressComesAfterEachBlockOfItems) {
  struct FewItems : ByContext {
    Blocks blocks() const override { return {64, 2, true}; }
  } scorer;
  const Interactions all = few();
  const Wanted options = options_for(path("top.csv"));
  OutputFile out(options.to, false);
  std::vector<std::string> reports;
  convoy::recommend(all, scorer, options, out, [&](const RecommendProgress& at) {
    reports.push_back(str(at.users, "/", at.total_users, ", ", at.block_users, ": ", at.items, "/", at.total_items));
  });
  EXPECT_THAT(reports, ElementsAre("0/3, 3: 2/5", "0/3, 3: 4/5", "0/3, 3: 5/5", "3/3, 0: 0/5"));
}

TEST_F(RecommenderTest, AFullDiskLeavesNothing) {
  ByContext scorer;
  const Interactions all = few();
  write("top.csv", "old");
  Wanted options = options_for(path("top.csv"));
  options.replace = true;
  for (int at = 0;; ++at) {
    FailingFiles failing(at, ENOSPC);
    const auto failure = failure_of([&] { recommend(all, scorer, options, failing); });
    if (failing.failed_at().empty()) {
      EXPECT_GE(at, 4) << "create, write, close, rename";
      break;
    }
    EXPECT_EQ(failure.first, Failure::io);
    EXPECT_EQ(files(), 1u) << failing.failed_at();
    if (failing.failed_at().rfind("sync_folder", 0) == 0) continue;  // the file is there, perhaps not on the disk
    EXPECT_EQ(text("top.csv"), "old") << failing.failed_at();
  }
  EXPECT_NE(text("top.csv"), "old");
}

// Two members; the second output has the scores.
TensorList forward(const Batch& batch) {
  const at::Tensor item = batch.at("item").to(at::kFloat), context = batch.at("context");
  const at::Tensor scores = context.narrow(1, 0, 1) * item + context.narrow(1, 1, 1);
  EXPECT_EQ(batch.at("target").sizes(), item.sizes());
  return {at::arange(3), at::stack({scores - 1, scores + 1})};
}

TEST_F(RecommenderTest, AModelWithoutAScorerIsRankedByItsForward) {
  ByContext own;
  ForwardScorer scorer(forward, at::kFloat);
  const Interactions all = few();
  recommend(all, own, options_for(path("own.csv")));
  recommend(all, scorer, options_for(path("forward.csv")));
  EXPECT_EQ(text("own.csv"), text("forward.csv"));
  const std::vector<std::shared_ptr<PairScorer>> members{std::make_shared<ByContext>(),
                                                         std::make_shared<ForwardScorer>(forward, at::kFloat)};
  MeanScorer mean(members);
  recommend(all, mean, options_for(path("mean.csv")));
  EXPECT_EQ(text("own.csv"), text("mean.csv"));
  EXPECT_FALSE(mean.blocks().threads) << "one of the members has none";
  ForwardScorer other([](const Batch&) { return TensorList{at::arange(3)}; }, at::kFloat);
  const auto failure = failure_of([&] { recommend(all, other, options_for(path("other.csv"))); });
  EXPECT_EQ(failure.first, Failure::config);
  EXPECT_THAT(failure.second, HasSubstr("the model's outputs have [3]"));
}

}  // namespace
}  // namespace convoy
