// Preparation of columns: scaling, categories, missing values, several files; what a checkpoint stores of them.
#include "core/data/preparation.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/formats/input_files.h"
#include "core/data/readers/interactions_reader.h"
#include "core/data/sets/interactions.h"
#include "core/data/sets/table.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::WrittenFiles;

std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().flatten();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

TableOptions table_options(bool scale, bool fill, std::vector<std::string> categorical) {
  TableOptions options;
  options.target = "y";
  options.classification = false;
  options.prepare = {scale, fill, std::move(categorical)};
  return options;
}

Table table_of(const std::string& path, const TableOptions& options, double fraction = 0) {
  return {read_table(path, options), std::nullopt, fraction, options.classification, 0, 1, options.prepare};
}

at::Tensor all_features(const Dataset& data, Split split = Split::train) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < data.size(split); ++row) rows.push_back(row);
  return data.gather_once(split, at::tensor(rows), 0).at("features");
}

TEST(Preparation, ScalesByMeanAndDeviationOfTheTrainingRowsAlone) {
  WrittenFiles files;
  std::string text = "a,b,y\n";
  for (int row = 0; row < 40; ++row) text += str(row * row, ",", row % 3, ",0\n");
  const std::string path = files.write("t.csv", text);
  const Table scaled = table_of(path, table_options(true, false, {}), 0.25);
  const Table raw = table_of(path, table_options(false, false, {}), 0.25);
  const at::Tensor train = all_features(scaled).to(at::kDouble);
  EXPECT_LT(train.mean(0).abs().max().item<double>(), 1e-6);
  EXPECT_LT((train.pow(2).mean(0) - 1).abs().max().item<double>(), 1e-5);
  const at::Tensor raw_train = all_features(raw).to(at::kDouble);
  const at::Tensor mean = raw_train.mean(0), deviation = (raw_train - mean).pow(2).mean(0).sqrt();
  const at::Tensor expected = (all_features(raw, Split::evaluate).to(at::kDouble) - mean) / deviation;
  EXPECT_LT((all_features(scaled, Split::evaluate).to(at::kDouble) - expected).abs().max().item<double>(), 1e-5);
}

TEST(Preparation, LeavesAConstantColumnAtZero) {
  WrittenFiles files;
  const Table table =
      table_of(files.write("t.csv", "a,b,y\n0.1,1,0\n0.1,2,0\n0.1,3,0\n"), table_options(true, false, {}));
  EXPECT_LT(all_features(table).select(1, 0).abs().max().item<double>(), 1e-6);
}

TEST(Preparation, MakesOneInputOfEachCategory) {
  WrittenFiles files;
  const Table table = table_of(files.write("t.csv", "size,colour,y\n1,red,0\n2,blue,0\n3,red,0\n"),
                               table_options(false, false, {"colour"}));
  EXPECT_THAT(floats_of(all_features(table)), ElementsAre(1, 0, 1, 2, 1, 0, 3, 0, 1)) << "blue, then red";
  EXPECT_EQ(table.schema().fields.at("features").shape, std::vector<int64_t>{3});
}

TEST(Preparation, SortsCategoriesThatAreNumbersByValue) {
  WrittenFiles files;
  const TableData data =
      read_table(files.write("t.csv", "hour,y\n10,0\n9,0\n0,0\n9,0\n"), table_options(false, false, {"hour"}));
  EXPECT_THAT(data.words.at(0), ElementsAre("0", "9", "10"));
  EXPECT_THAT(floats_of(data.features), ElementsAre(2, 1, 0, 1));
}

TEST(Preparation, FillsMissingValuesOnlyIfItMay) {
  WrittenFiles files;
  const std::string path = files.write("t.csv", "a,colour,y\n1,red,0\nNA,,0\n4,red,0\n");
  const Table table = table_of(path, table_options(false, true, {"colour"}));
  EXPECT_THAT(floats_of(all_features(table)), ElementsAre(1, 0, 1, 2.5, 1, 0, 4, 0, 1)) << "missing, then red";
  EXPECT_THAT(failure_of([&] { table_of(path, table_options(false, false, {"colour"})); }),
              HasSubstr("t.csv:3:1: 'NA' marks a missing number"));
  const std::string words = files.write("w.csv", "a,colour,y\n1,red,0\n2,,0\n");
  EXPECT_THAT(failure_of([&] { table_of(words, table_options(false, false, {"colour"})); }),
              HasSubstr("w.csv:3:3: the category is missing; correct the line, or train with --set data.missing=fill"));
}

TEST(Preparation, RefusesAColumnThatIsNoFeature) {
  WrittenFiles files;
  const std::string path = files.write("t.csv", "size,colour,y\n1,red,0\n");
  EXPECT_THAT(failure_of([&] { table_of(path, table_options(false, false, {"color"})); }),
              HasSubstr("no feature 'color' (data.categorical); the features are size, colour; did you mean colour?"));
}

TEST(Preparation, IsStoredAndAppliedToOtherData) {
  WrittenFiles files;
  const TableOptions options = table_options(true, true, {"colour"});
  const Table trained = table_of(files.write("a.csv", "size,colour,y\n1,red,0\n5,blue,0\n,green,0\n"), options);
  const DataContents stored = trained.contents();
  const Table other = table_of(files.write("b.csv", "size,colour,y\n3,red,0\n7,blue,0\n"), options);
  EXPECT_TRUE(data_change(stored, other.contents()).renumber);
  EXPECT_TRUE(data_change(stored, other.contents()).unknown.empty());
  EXPECT_FALSE(data_change(stored, trained.contents()).renumber);
  const DatasetPtr numbered = other.numbered_as(stored);
  // Mean 3 and deviation 2, of the two values in the file. With the filled value the deviation would be 2 · √(2/3).
  EXPECT_THAT(floats_of(all_features(*numbered)), ElementsAre(0, 0, 0, 1, 2, 1, 0, 0));
  EXPECT_EQ(numbered->schema().fields.at("features").shape, trained.schema().fields.at("features").shape);
  const Table unknown = table_of(files.write("c.csv", "size,colour,y\n3,pink,0\n"), options);
  EXPECT_THAT(
      failure_of([&] { unknown.numbered_as(stored); }),
      HasSubstr("category of column 'colour' 'pink' does not occur in the training data, which has blue, green"));
}

TEST(Preparation, ReadsBackWhatItStores) {
  std::vector<PreparedColumn> columns(2);
  columns[0].name = "size";
  columns[0].mean = 0.1;
  columns[0].deviation = 1.0 / 3;
  columns[0].scaled = true;
  columns[1].name = "colour";
  columns[1].categorical = true;
  columns[1].categories = {"", "é"};
  DataContents contents;
  contents.lists["preparation"] = stored_preparations({{"context", Preparation(columns)}, {"features", {}}});
  const Preparations read = preparations_of(contents);
  ASSERT_EQ(read.size(), 1U) << "a preparation that changes nothing is not stored";
  const std::vector<PreparedColumn>& back = read.at("context").columns();
  EXPECT_EQ(back[0].deviation, columns[0].deviation);
  EXPECT_EQ(back[0].mean, columns[0].mean);
  EXPECT_EQ(back[1].categories, columns[1].categories);
  contents.lists["preparation"] = {NameList(std::vector<std::string>{"{}"})};
  EXPECT_THAT(failure_of([&] { preparations_of(contents); }), HasSubstr("not of this version"));
}

TEST(Preparation, HintsAtColumnsThatShouldBeScaled) {
  const at::Tensor raw = at::tensor({1.F, 1000.F, 2.F, 3000.F, 1.5F, 500.F}).view({3, 2});
  const Preparation unscaled({"acid", "proline"}, {}, raw, nullptr, {});
  EXPECT_THAT(unscaled.scale_hint(), HasSubstr("column 'proline'"));
  EXPECT_THAT(unscaled.scale_hint(), HasSubstr("--set data.scale=standard"));
  PreparationOptions scale;
  scale.scale = true;
  EXPECT_EQ(Preparation({"acid", "proline"}, {}, raw, nullptr, scale).scale_hint(), "");
  EXPECT_EQ(Preparation({"a", "b"}, {}, raw / 1000, nullptr, {}).scale_hint(), "") << "no column is wide";
}

TEST(SeveralFiles, AreOneTableInTheOrderOfTheFirst) {
  WrittenFiles files;
  files.write("part-1.csv", "a,colour,y\n1,red,oak\n2,blue,ash\n");
  files.write("part-2.csv", "y,colour,a\nelm,green,3\noak,red,4\n");
  TableOptions options = table_options(false, false, {"colour"});
  options.classification = true;
  const TableData data = read_table(files.path("part-*.csv"), options);
  EXPECT_THAT(data.columns, ElementsAre("a", "colour"));
  EXPECT_THAT(data.labels, ElementsAre("ash", "elm", "oak"));
  EXPECT_THAT(data.words.at(1), ElementsAre("blue", "green", "red"));
  EXPECT_THAT(floats_of(data.features), ElementsAre(1, 2, 2, 0, 3, 1, 4, 2));
  EXPECT_TRUE(at::equal(data.target, at::tensor({2, 0, 1, 2}, at::kLong)));
  files.write("part-3.csv", "y,colour\nelm,green\n");
  EXPECT_THAT(failure_of([&] { read_table(files.path("part-*.csv"), options); }),
              HasSubstr("part-3.csv: column 'a' of the training data is not among colour"));
}

TEST(SeveralFiles, AreFoundByPatternInTheOrderOfTheirNames) {
  WrittenFiles files;
  for (const char* name : {"b-2.csv", "b-10.csv", "c.csv", "odd[1].csv"}) files.write(name, "x");
  EXPECT_THAT(files_of(files.path("b-*.csv")), ElementsAre(files.path("b-10.csv"), files.path("b-2.csv")));
  EXPECT_THAT(files_of(files.path("{c,b-2}.csv")), ElementsAre(files.path("b-2.csv"), files.path("c.csv")));
  EXPECT_THAT(files_of(files.path("odd[1].csv")), ElementsAre(files.path("odd[1].csv"))) << "a file of that name";
  EXPECT_THAT(files_of(files.path("none.csv")), ElementsAre(files.path("none.csv"))) << "its reader reports it";
  EXPECT_THAT(failure_of([&] { files_of(files.path("d*.csv")); }), HasSubstr("no file matches"));
}

InteractionColumns interaction_columns(const PreparationOptions& prepare) {
  InteractionColumns columns;
  columns.user = "user";
  columns.item = "item";
  columns.time = "time";
  columns.context = {"hour", "device"};
  columns.prepare = prepare;
  return columns;
}

RankingOptions ranking_options() {
  RankingOptions ranking;
  ranking.negatives = 0;
  ranking.candidates = 1;
  return ranking;
}

const char interactions_text[] =
    "user,item,time,hour,device\nu1,a,1,10,phone\nu1,b,2,20,web\nu2,c,1,30,phone\nu2,d,2,NA,tv\nu3,e,1,50,web\n";

TEST(InteractionPreparation, ScalesContextsAndMakesInputsOfTheirCategories) {
  WrittenFiles files;
  const PreparationOptions prepare{true, true, {"device"}};
  const Interactions all = read_interactions(files.write("i.csv", interactions_text), interaction_columns(prepare));
  EXPECT_THAT(all.context_words.at(1), ElementsAre("phone", "tv", "web"));
  const InteractionsDataset data(all, Holdout::latest, ranking_options(), 1, prepare);
  EXPECT_EQ(data.schema().fields.at("context").shape, std::vector<int64_t>{4});
  // Training rows: hours 10, 30, 50.
  const at::Tensor context = data.gather_once(Split::train, at::tensor({0, 1, 2}, at::kLong), 0).at("context");
  const float one = std::sqrt(1.5F);
  const std::vector<float> expected{-one, 1, 0, 0, 0, 1, 0, 0, one, 0, 0, 1};
  const std::vector<float> values = floats_of(context);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-6) << i;
  // Held out: 20 and web, a missing hour and tv.
  const at::Tensor held = data.gather_once(Split::evaluate, at::tensor({0, 1}, at::kLong), 0).at("context");
  EXPECT_NEAR(held[0][0].item<float>(), -one / 2, 1e-6);
  EXPECT_EQ(held[1][0].item<float>(), 0) << "the mean";
  EXPECT_EQ(held[1][2].item<float>(), 1);
}

TEST(InteractionPreparation, IsThatOfTheCheckpointForOtherData) {
  WrittenFiles files;
  const PreparationOptions prepare{true, true, {"device"}};
  const auto read = [&](const std::string& name, const std::string& text) {
    return read_interactions(files.write(name, text), interaction_columns(prepare));
  };
  const InteractionsDataset trained(read("i.csv", interactions_text), Holdout::latest, ranking_options(), 1, prepare);
  const InteractionsDataset other(
      read("o.csv", "user,item,time,hour,device\nu2,d,9,30,web\nu1,a,9,70,tv\nu1,b,9,10,tv\n"), Holdout::none,
      ranking_options(), 1, prepare);
  const DatasetPtr numbered = other.numbered_as(trained.contents());
  const at::Tensor context = numbered->gather_once(Split::train, at::tensor({0, 1}, at::kLong), 0).at("context");
  EXPECT_EQ(context[0][0].item<float>(), 0) << "30 is the mean of the checkpoint's training rows";
  EXPECT_EQ(context[0][3].item<float>(), 1) << "web";
  EXPECT_EQ(context[1][2].item<float>(), 1) << "tv";
  const InteractionsDataset unknown(read("u.csv", "user,item,time,hour,device\nu2,d,9,30,car\n"), Holdout::none,
                                    ranking_options(), 1, prepare);
  EXPECT_THAT(failure_of([&] { unknown.numbered_as(trained.contents()); }),
              HasSubstr("category 'car' of context column 'device' is not in the checkpoint"));
}

TEST(InteractionPreparation, JoinsSeveralFiles) {
  WrittenFiles files;
  const PreparationOptions prepare{false, true, {"device"}};
  const std::string header = "user,item,time,hour,device\n";
  files.write("d-1.csv", header + "u1,a,1,10,phone\nu1,b,2,20,web\n");
  files.write("d-2.csv", header + "u2,b,1,30,car\nu1,c,2,40,web\n");
  const Interactions all = read_interactions(files.path("d-*.csv"), interaction_columns(prepare));
  EXPECT_EQ(all.size(), 4);
  EXPECT_THAT(all.user_names.strings(), ElementsAre("u1", "u2"));
  EXPECT_THAT(all.item_names.strings(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(at::equal(all.user, at::tensor({0, 0, 1, 0}, at::kInt)));
  EXPECT_TRUE(at::equal(all.item, at::tensor({0, 1, 1, 2}, at::kInt)));
  EXPECT_THAT(all.context_words.at(1), ElementsAre("car", "phone", "web"));
  EXPECT_THAT(floats_of(all.context), ElementsAre(10, 1, 20, 2, 30, 0, 40, 2));
}

TEST(InteractionPreparation, RefusesFilesThatDisagreeAboutAnItem) {
  WrittenFiles files;
  InteractionColumns columns = interaction_columns({});
  columns.context.clear();
  columns.item_features = {"hour"};
  const std::string header = "user,item,time,hour\n";
  files.write("d-1.csv", header + "u1,a,1,10\nu1,b,2,20\n");
  files.write("d-2.csv", header + "u2,b,1,20\nu1,c,2,40\n");
  Interactions all = read_interactions(files.path("d-*.csv"), columns);
  add_features(all, {}, {});
  EXPECT_THAT(floats_of(all.item_features), ElementsAre(10, 20, 40));
  files.write("d-3.csv", header + "u2,a,1,99\n");
  EXPECT_THAT(failure_of([&] { read_interactions(files.path("d-*.csv"), columns); }),
              HasSubstr("item 'a' has other values of hour than in an earlier file"));
}

}  // namespace
}  // namespace convoy
