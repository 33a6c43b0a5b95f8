// Rows without a target for `convoy predict`, and the files of its results.
#include "core/data/readers/new_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/formats/delimited.h"
#include "core/data/prediction_file.h"
#include "core/data/readers/interactions_reader.h"
#include "core/data/sets/interactions.h"
#include "core/data/sets/table.h"
#include "core/tensors/safetensors.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::WrittenFiles;

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

std::vector<float> numbers_in(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().flatten();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

Component table_component() {
  return {"table", Options(Json{{"name", "table"},
                                {"delimiter", ","},
                                {"header", true},
                                {"features", Json::array()},
                                {"target", "kind"},
                                {"task", "classification"}})};
}

// A table that was trained with a scaled and a categorical column.
struct TrainedTable {
  TrainedTable() {
    TableOptions options;
    options.target = "kind";
    options.prepare = {true, true, {"colour"}};
    const std::string path = files.write("train.csv", "size,colour,kind\n1,red,oak\n5,blue,ash\n");
    const Table table(read_table(path, options), std::nullopt, 0, true, 0, 1, options.prepare);
    schema = table.schema();
    contents = table.contents();
  }
  std::unique_ptr<NewRows> open(const std::string& text, bool skip = false, int64_t block = 1 << 15) {
    return open_new_rows(files.write("new.csv", text), {component, schema, &contents}, {skip, block});
  }

  WrittenFiles files;
  Component component = table_component();
  Schema schema;
  DataContents contents;
};

TEST(NewRows, FindsColumnsByNameAndPreparesThemAsInTraining) {
  TrainedTable trained;
  const auto rows = trained.open("id,colour,size\na,red,3\nb,blue,7\nc,red,\n");
  RowBlock block;
  ASSERT_TRUE(rows->next(block));
  EXPECT_THAT(numbers_in(block.batch.at("features")), ElementsAre(0, 0, 1, 2, 1, 0, 0, 0, 1));
  EXPECT_THAT(block.lines, ElementsAre("a,red,3", "b,blue,7", "c,red,"));
  EXPECT_EQ(block.batch.at("target").scalar_type(), at::kLong);
  EXPECT_EQ(rows->header(), "id,colour,size");
  EXPECT_THAT(rows->notes(),
              ElementsAre("columns that the model does not read are copied: id",
                          "columns are in another order than in training and are found by name: size, colour"));
  EXPECT_FALSE(rows->next(block));
}

TEST(NewRows, NamesAllMissingColumns) {
  TrainedTable trained;
  EXPECT_THAT(refusal_of([&] { trained.open("Size,other\n1,2\n"); }),
              HasSubstr("new.csv:1: has no column size, colour, which the model was trained on; it has Size, other; is "
                        "Size meant to be size?"));
}

TEST(NewRows, RefusesOrLeavesOutACategoryThatTrainingDidNotHave) {
  TrainedTable trained;
  const std::string text = "size,colour\n1,red\n2,pink\n3,blue\n";
  RowBlock block;
  EXPECT_THAT(
      refusal_of([&] { trained.open(text)->next(block); }),
      HasSubstr("new.csv:3:3: category 'pink' of column 'colour' does not occur in the training data; leave its "
                "rows out, or type --unknown skip"));
  const auto rows = trained.open(text, true);
  ASSERT_TRUE(rows->next(block));
  EXPECT_EQ(block.read, 3);
  EXPECT_EQ(block.batch.rows, 2);
  EXPECT_THAT(block.lines, ElementsAre("1,red", "3,blue"));
  EXPECT_EQ(rows->skipped(), 1);
}

TEST(NewRows, GivesTheSameRowsInBlocksOfAnySizeAndByAnyNumberOfThreads) {
  TrainedTable trained;
  std::string text = "size,colour\n";
  for (int i = 0; i < 101; ++i) text += str(i, ",", i % 3 == 0 ? "\"red\"" : i % 7 == 0 ? "pink" : "blue", "\n");
  std::vector<float> expected;
  const int threads = at::get_num_threads();
  for (const auto& [block_rows, with] : std::vector<std::pair<int64_t, int>>{{1000, 1}, {1, 1}, {7, 3}, {64, 2}}) {
    at::set_num_threads(with);
    const auto rows = trained.open(text, true, block_rows);
    std::vector<float> all;
    RowBlock block;
    int64_t read = 0;
    while (rows->next(block)) {
      const std::vector<float> some = numbers_in(block.batch.at("features"));
      all.insert(all.end(), some.begin(), some.end());
      read += block.read;
    }
    EXPECT_EQ(read, 101);
    if (expected.empty()) expected = all;
    EXPECT_EQ(all, expected) << block_rows << " rows a block";
  }
  at::set_num_threads(threads);
}

TEST(NewRows, ReportsAMistakeAtItsLineInALaterBlock) {
  TrainedTable trained;
  std::string text = "size,colour\n";
  for (int i = 0; i < 50; ++i) text += "1,red\n";
  const auto reads = [&](const std::string& more) {
    const auto rows = trained.open(text + more, false, 8);
    RowBlock block;
    while (rows->next(block)) {
    }
  };
  EXPECT_THAT(refusal_of([&] { reads("x,red\n1,red\n"); }), HasSubstr("new.csv:52:1: 'x' is not a number"));
  EXPECT_THAT(refusal_of([&] { reads("1,red,3\n"); }), HasSubstr("new.csv:52:7: 3 fields where the first line has 2"));
  EXPECT_THAT(refusal_of([&] { reads("\n1,red\n"); }), HasSubstr("a blank line between rows"));
  EXPECT_EQ(refusal_of([&] { reads(std::string(40, '\n')); }), "no failure") << "blank lines at the end";
}

// Interactions with a scaled context and features of items.
struct TrainedInteractions {
  TrainedInteractions() {
    InteractionColumns columns;
    columns.user = "user";
    columns.item = "item";
    columns.time = "time";
    columns.context = {"hour"};
    columns.item_features = {"price"};
    columns.prepare = {true, false, {}};
    const std::string path = files.write("train.csv",
                                         "user,item,time,hour,price\nu1,a,1,10,1\nu1,b,2,0,3\nu2,c,1,30,5\n"
                                         "u2,a,3,0,1\n");
    Interactions all = read_interactions(path, columns);
    add_features(all, {}, {});
    RankingOptions ranking;
    ranking.negatives = 1;
    ranking.candidates = 1;
    const InteractionsDataset data(std::move(all), Holdout::latest, ranking, 1, columns.prepare);
    schema = data.schema();
    contents = data.contents();
  }

  WrittenFiles files;
  Component component{"interactions",
                      Options(Json{{"name", "interactions"},
                                   {"format", "auto"},
                                   {"delimiter", nullptr},
                                   {"header", true},
                                   {"columns", {{"user", "user"}, {"item", "item"}, {"context", {"hour"}}}}})};
  Schema schema;
  DataContents contents;
};

TEST(NewRows, NumberIdsAndLookUpFeaturesOfInteractions) {
  TrainedInteractions trained;
  const std::string path = trained.files.write("new.csv", "item,user,hour\nc,u2,20\na,u1,40\nb,nobody,0\n");
  const auto rows = open_new_rows(path, {trained.component, trained.schema, &trained.contents}, {true, 100});
  RowBlock block;
  ASSERT_TRUE(rows->next(block));
  EXPECT_TRUE(at::equal(block.batch.at("user"), at::tensor({1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(block.batch.at("item"), at::tensor({2, 0}, at::kLong).view({2, 1})));
  EXPECT_THAT(numbers_in(block.batch.at("context")), ElementsAre(0, 2)) << "mean 20, deviation 10";
  EXPECT_EQ(block.batch.at("item_features").sizes(), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_GT(numbers_in(block.batch.at("item_features"))[0], 0) << "price 5, above the mean of 3";
  EXPECT_EQ(rows->skipped(), 1);
  const auto strict = open_new_rows(path, {trained.component, trained.schema, &trained.contents}, {});
  EXPECT_THAT(refusal_of([&] { strict->next(block); }),
              HasSubstr("new.csv:4:3: user 'nobody' does not occur in the training data"));
}

TEST(NewRows, ReadArraysByTheNamesOfFields) {
  WrittenFiles files;
  Schema schema;
  schema.fields["features"] = {{2}, at::kFloat, 0};
  schema.fields["target"] = {{}, at::kLong, 3};
  const Component component = table_component();
  const auto open = [&](const std::string& name, const std::string& tensor, const at::Tensor& values) {
    write_safetensors(files.path(name), {{tensor, values}}, {});
    return open_new_rows(files.path(name), {component, schema, nullptr}, {false, 2});
  };
  const auto rows = open("x.safetensors", "features", at::tensor({1.F, 2.F, 3.F, 4.F, 5.F, 6.F}).view({3, 2}));
  EXPECT_EQ(rows->rows(), 3);
  RowBlock block;
  ASSERT_TRUE(rows->next(block));
  EXPECT_THAT(numbers_in(block.batch.at("features")), ElementsAre(1, 2, 3, 4));
  ASSERT_TRUE(rows->next(block));
  EXPECT_THAT(numbers_in(block.batch.at("features")), ElementsAre(5, 6));
  EXPECT_FALSE(rows->next(block));
  EXPECT_THAT(refusal_of([&] {
                open("wide.safetensors", "features", at::tensor({1.F, 2.F, 3.F}).view({1, 3}));
              }),
              HasSubstr("rows of features have the shape [3], and the model was trained on [2]"));
  EXPECT_THAT(refusal_of([&] { open("other.safetensors", "other", at::tensor({1.F})); }),
              HasSubstr("has no tensor features; the model was trained on features, and it has other"));
}

void read_all(NewRows& rows) {
  RowBlock block;
  while (rows.next(block)) {
  }
}

// An id out of range would read other memory; a fraction would be truncated.
TEST(NewRows, RefuseValuesOfArraysThatTrainingDidNotHave) {
  WrittenFiles files;
  Schema schema;
  schema.fields["user"] = {{}, at::kLong, 60};
  schema.fields["item"] = {{}, at::kLong, 5};
  schema.fields["target"] = {{}, at::kFloat, 0};
  const Component component{"interactions", Options(Json{{"name", "interactions"}})};
  int number = 0;
  const auto refusal = [&](const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    const std::string path = files.path("ids" + std::to_string(number++) + ".safetensors");
    write_safetensors(path, tensors, {});
    return refusal_of([&] { read_all(*open_new_rows(path, {component, schema, nullptr}, {false, 2})); });
  };
  const at::Tensor users = at::tensor({0, 59, 3}, at::kLong), items = at::tensor({4, 0, 1}, at::kLong);
  EXPECT_EQ(refusal({{"user", users}, {"item", items}}), "no failure");
  EXPECT_THAT(refusal({{"user", users}}), HasSubstr("has no tensor item; the model was trained on item, user"));
  EXPECT_THAT(refusal({{"user", at::tensor({0, 60, 3}, at::kLong)}, {"item", items}}),
              HasSubstr("user, row 1, value 0: is 60, which is no number of an id or token from 0 to 59"));
  EXPECT_THAT(refusal({{"user", at::tensor({0, 1, -1}, at::kLong)}, {"item", items}}),
              HasSubstr("row 2, value 0: is -1"));
  EXPECT_THAT(refusal({{"user", at::tensor({0.0, 0.5, 1.0}, at::kDouble)}, {"item", items}}), HasSubstr("is 0.5"));
}

TEST(NewRows, RefuseUnseenCategoriesAndInfiniteNumbersOfArrays) {
  TrainedTable trained;
  const Component component = table_component();
  int number = 0;
  const auto refusal = [&](const at::Tensor& values) {
    const std::string path = trained.files.path("x" + std::to_string(number++) + ".safetensors");
    write_safetensors(path, {{"features", values}}, {});
    return refusal_of([&] {
      read_all(*open_new_rows(path, {component, trained.schema, &trained.contents}, {false, 2}));
    });
  };
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(refusal(at::tensor({1.F, 0.F, 5.F, 1.F}).view({2, 2})), "no failure");
  for (const float category : {9.F, -1.F, 0.5F})
    EXPECT_THAT(refusal(at::tensor({1.F, 0.F, 5.F, category}).view({2, 2})), HasSubstr("features, row 1, value 1: is"));
  EXPECT_THAT(refusal(at::tensor({infinite, 0.F, 5.F, 1.F}).view({2, 2})), HasSubstr("row 0, value 0: is inf"));
  EXPECT_THAT(refusal(at::tensor({1.F, 9.F, 5.F, 1.F}).view({2, 2})), HasSubstr("type --unknown skip"));
  EXPECT_EQ(refusal(at::tensor({std::nanf(""), 0.F}).view({1, 2})), "no failure") << "data.missing: fill";
}

TEST(NewRows, LeaveOutUnknownCategoriesOfArraysAndNumberTheOthers) {
  TrainedTable trained;
  const auto rows =
      new_array_rows({{"features", at::tensor({1.F, 0.F, 2.F, 9.F, 3.F, 1.F, 4.F, -1.F, 5.F, 0.F}).view({5, 2})},
                      {"more", at::tensor({1.F})}},
                     "x", {trained.component, trained.schema, &trained.contents}, {true, 2});
  EXPECT_THAT(rows->notes(), ElementsAre("tensors that the model does not read are ignored: more"));
  EXPECT_TRUE(rows->numbered());
  std::vector<int64_t> numbers;
  RowBlock block;
  while (rows->next(block)) {
    EXPECT_EQ(block.batch.rows, int64_t(block.numbers.size()));
    EXPECT_EQ(block.batch.at("features").size(0), block.batch.rows);
    numbers.insert(numbers.end(), block.numbers.begin(), block.numbers.end());
  }
  EXPECT_THAT(numbers, ElementsAre(0, 2, 4));
  EXPECT_EQ(rows->skipped(), 2);
  const auto broken = new_array_rows({{"features", at::tensor({1.F, 0.5F}).view({1, 2})}}, "x",
                                     {trained.component, trained.schema, &trained.contents}, {true, 2});
  EXPECT_THAT(refusal_of([&] { read_all(*broken); }), HasSubstr("is 0.5")) << "no number of a category at all";
}

TEST(NewRows, ArraysOfInteractionsArePreparedAndGetStoredFeatures) {
  TrainedInteractions trained;
  const TrainedData data{trained.component, trained.schema, &trained.contents};
  const auto text = new_text_rows("item,user,hour\nc,u2,20\na,u1,40\n", "text", data, {});
  const auto arrays = new_array_rows({{"user", at::tensor({1, 0, 99}, at::kLong)},
                                      {"item", at::tensor({2, 0, 0}, at::kLong)},
                                      {"context", at::tensor({20.F, 40.F, 0.F}).view({3, 1})}},
                                     "arrays", data, {true, 100});
  RowBlock expected, block;
  ASSERT_TRUE(text->next(expected));
  ASSERT_TRUE(arrays->next(block));
  for (const auto& [name, tensor] : expected.batch.tensors)
    EXPECT_TRUE(at::equal(block.batch.at(name), tensor)) << name;
  EXPECT_EQ(arrays->skipped(), 1) << "user 99";
}

TEST(Names, AreWrittenAsTheyWereRead) {
  EXPECT_EQ(plain_name("oak"), "oak");
  EXPECT_EQ(plain_name("d\"\"q"), "d\"q");
  std::string line;
  append_field(line, plain_name("d\"\"q"), ',');
  EXPECT_EQ(line, "\"d\"\"q\"");
}

// --- Files of results ---

struct WrittenPredictions {
  std::string text(TrainedTable& trained, const std::string& rows_text, const PredictionForm& form,
                   const Predictions& predictions, const std::string& name = "out.csv") {
    const auto rows = trained.open(rows_text);
    RowBlock block;
    rows->next(block);
    const std::string path = trained.files.path(name);
    const auto file = make_prediction_file(std::make_unique<OutputFile>(path, true), form, *rows);
    file->write(predictions, block);
    file->finish();
    return read_file(path);
  }
};

TEST(PredictionFile, AppendsColumnsToTheLinesOfTheInput) {
  TrainedTable trained;
  PredictionForm form;
  form.classes = {"ash", "oak, red"};
  form.width = 2;
  form.members = 2;
  const Predictions predictions{at::tensor({0.75F, 0.25F, 0.125F, 0.875F}).view({2, 2}), at::tensor({0, 1}, at::kLong),
                                at::tensor({0, 1, 1, 1}, at::kLong).view({2, 2})};
  const std::string input = "size,colour,prediction\n1,\"red\",x\n2,blue,y\n";
  WrittenPredictions written;
  EXPECT_EQ(
      written.text(trained, input, form, predictions),
      "size,colour,prediction,prediction_2,probability_ash,\"probability_oak, red\",member0,member1\n"
      "1,\"red\",x,ash,0.75,0.25,ash,\"oak, red\"\n2,blue,y,\"oak, red\",0.125,0.875,\"oak, red\",\"oak, red\"\n");
  form.probabilities = PredictionForm::Probabilities::best;
  form.members = 1;
  EXPECT_EQ(written.text(trained, "size,colour\n1,red\n2,blue\n", form, predictions),
            "size,colour,prediction,probability\n1,red,ash,0.75\n2,blue,\"oak, red\",0.875\n");
}

TEST(PredictionFile, WritesArraysThatReadersTake) {
  TrainedTable trained;
  PredictionForm form;
  form.width = 1;
  Predictions predictions;
  predictions.values = at::tensor({0.5F, -2.F}).view({2, 1});
  WrittenPredictions written;
  const std::string rows = "size,colour\n1,red\n2,blue\n";
  written.text(trained, rows, form, predictions, "out.npy");
  const at::Tensor back = read_npy(trained.files.path("out.npy"));
  EXPECT_EQ(back.sizes(), (std::vector<int64_t>{2}));
  EXPECT_THAT(numbers_in(back), ElementsAre(0.5F, -2.F));
  form.classes = {"ash", "oak"};
  form.width = 2;
  predictions.values = at::tensor({0.75F, 0.25F, 0.125F, 0.875F}).view({2, 2});
  predictions.best = at::tensor({0, 1}, at::kLong);
  written.text(trained, rows, form, predictions, "out.safetensors");
  const SafetensorsFile file(trained.files.path("out.safetensors"));
  EXPECT_THAT(numbers_in(file.tensor("prediction")), ElementsAre(0.75F, 0.25F, 0.125F, 0.875F));
}

}  // namespace
}  // namespace convoy
