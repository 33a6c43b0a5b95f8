// Description of the data in a checkpoint, differences of other data from it, and data sets that number users, items,
// classes and tokens as the checkpoint does.
#include "core/data/contents.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include "core/base/error.h"
#include "core/checkpoint/stored_files.h"
#include "core/data/readers/interactions_reader.h"
#include "core/data/sets/images.h"
#include "core/data/sets/table.h"
#include "core/data/sets/text.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::WrittenFiles;
using Names = std::vector<std::string>;

DataContents contents(const std::string& fingerprint, int64_t rows, const std::map<std::string, Names>& lists) {
  DataContents made{fingerprint, rows, {}};
  for (const auto& [name, names] : lists) made.lists[name] = {NameList(names), name == "columns"};
  return made;
}

TEST(DataChange, NamesNewMissingAndChangedColumns) {
  const DataContents stored = contents("a", 10, {{"users", {"u1", "u2", "u3"}}, {"columns", {"x", "y"}}});
  EXPECT_TRUE(data_change(stored, stored).none());
  const auto change = [&](const std::map<std::string, Names>& lists, int64_t rows = 10) {
    return data_change(stored, contents("b", rows, lists));
  };
  const Names users{"u1", "u2", "u3"}, columns{"x", "y"};
  EXPECT_THAT(change({{"users", users}, {"columns", columns}}).other, ElementsAre("its contents differ"));
  EXPECT_THAT(change({{"users", users}, {"columns", columns}}, 12).other, ElementsAre("12 rows, 10 in the checkpoint"));
  const DataChange order = change({{"users", {"u2", "u1", "u3"}}, {"columns", columns}});
  EXPECT_THAT(order.unknown, IsEmpty());
  EXPECT_THAT(order.other, ElementsAre("the users come in another order", "its contents differ"));
  EXPECT_TRUE(order.renumber);
  EXPECT_THAT(change({{"users", {"u1", "u2", "u3", "\x01n"}}, {"columns", columns}}).unknown,
              ElementsAre("user '?n' is new, and not in the checkpoint"));
  EXPECT_THAT(change({{"users", {"u1", "1", "2", "3", "4", "5"}}, {"columns", columns}}).unknown,
              ElementsAre("users '1', '2', '3' and 2 more are new, and not in the checkpoint"));
  // Users may be missing; a column may not.
  EXPECT_THAT(change({{"users", {"u3"}}, {"columns", columns}}).unknown, IsEmpty());
  EXPECT_THAT(change({{"users", users}, {"columns", {"y"}}}).unknown, ElementsAre("column 'x' is missing"));
  EXPECT_THAT(
      change({{"classes", {"cat"}}, {"columns", columns}}).unknown,
      ElementsAre("it has classes, and the checkpoint has none", "it has no users, and the checkpoint has some"));
}

TEST(DataChange, EqualFingerprintsDifferAtMostInNumbering) {
  const DataContents stored = contents("a", 10, {{"users", {"u1", "u2"}}});
  const DataChange change = data_change(stored, contents("a", 8, {{"users", {"u2"}}}));
  EXPECT_TRUE(change.none() && change.renumber);
}

TEST(NameLists, AreCheckedWhenReadFromAFile) {
  const NameList names(Names{"", "a", "bc", ""});
  EXPECT_THAT(NameList(names.bytes(), names.ends()).strings(), ElementsAre("", "a", "bc", ""));
  for (const std::vector<int64_t>& ends : {std::vector<int64_t>{0, 2, 1, 3}, {-1, 0, 1, 3}, {0, 1, 2}, {0, 1, 2, 4}})
    EXPECT_THROW(NameList(names.bytes(), at::tensor(ends)), Error);
  EXPECT_THROW(NameList(names.ends(), names.bytes()), Error);
}

// Lists of names are in a separate file. The manifest has only this file's entry, with its hash.
TEST(StoredContents, ReadBackUnchanged) {
  const WrittenFiles files;
  const DataContents data = contents("f00", 7, {{"users", {"u1", "ü2"}}, {"items", {}}, {"classes", {"cat"}}});
  Manifest manifest;
  manifest.trainer = manifest.config = Json::object();
  store_contents(data, files.folder(), manifest, system_files());
  EXPECT_EQ(manifest.files.count("data.safetensors"), 1u);
  manifest = manifest_from_text(to_text(manifest), "m");
  const auto back = stored_contents(manifest, files.folder());
  ASSERT_TRUE(back.has_value());
  EXPECT_TRUE(data_change(*back, data).none());
  EXPECT_EQ(back->rows, 7);
  EXPECT_THAT(back->lists.at("users").names.strings(), ElementsAre("u1", "ü2"));
  files.write("data.safetensors", "damaged");
  EXPECT_THROW(stored_contents(manifest, files.folder()), Error);
  EXPECT_FALSE(stored_contents(Manifest(), files.folder()).has_value());
  Manifest none;
  store_contents({}, files.folder(), none, system_files());
  EXPECT_TRUE(none.data.is_null());
}

InteractionColumns with_context() {
  InteractionColumns columns;
  columns.user = "u";
  columns.item = "i";
  columns.context = {"a", "b"};
  return columns;
}

// The same rows in another order: a batch has the file's rows and the checkpoint's numbers.
TEST(NumberedAs, InteractionsUseStoredIdsAndColumns) {
  const WrittenFiles files;
  RankingOptions ranking;
  ranking.negatives = 0;
  const auto data = [&](const std::string& text, const InteractionColumns& columns) {
    return std::make_shared<InteractionsDataset>(read_interactions(files.write("d.csv", text), columns), Holdout::none,
                                                 ranking, 1);
  };
  const auto first = data("u,i,a,b\nx,k,1,2\ny,l,3,4\nz,m,5,6\n", with_context());
  InteractionColumns turned = with_context();
  turned.context = {"b", "a"};
  const auto shuffled = data("u,i,a,b\nz,m,5,6\ny,l,3,4\n", turned);
  const DataChange change = data_change(first->contents(), shuffled->contents());
  EXPECT_THAT(change.unknown, IsEmpty());
  EXPECT_TRUE(change.renumber);
  const DatasetPtr numbered = shuffled->numbered_as(first->contents());
  const at::Tensor both = at::arange(2);
  const Batch batch = numbered->gather_once(Split::train, both, 0);
  EXPECT_TRUE(at::equal(batch.at("user"), at::tensor({2, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.at("item").flatten(), at::tensor({2, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.at("context"), at::tensor({5.f, 6.f, 3.f, 4.f}).view({2, 2})));
  EXPECT_EQ(numbered->schema().fields.at("user").cardinality, 3);
  const DataChange after = data_change(first->contents(), numbered->contents());
  EXPECT_FALSE(after.renumber);
  EXPECT_EQ(numbered->contents().fingerprint, shuffled->contents().fingerprint);
}

// Features follow the stored ids and columns, and a feature file is part of the data.
TEST(NumberedAs, InteractionsUseStoredFeatures) {
  const WrittenFiles files;
  RankingOptions ranking;
  ranking.negatives = 0;
  const auto data = [&](const std::string& text, const Names& ages, const std::string& items) {
    InteractionColumns columns = with_context();
    columns.context = {};
    columns.user_features = ages;
    FeatureFile file;
    file.option = "data.item_features";
    file.entity = "item";
    file.id = "i";
    file.path = files.write("items.csv", items);
    Interactions all = read_interactions(files.write("d.csv", text), columns);
    add_features(all, file, {});
    return std::make_shared<InteractionsDataset>(std::move(all), Holdout::none, ranking, 1);
  };
  const std::string head = "u,i,a,b\n", items = "i,price,size\nk,1,7\nl,2,8\nm,3,9\n";
  const auto first = data(head + "x,k,1,2\ny,l,3,4\nz,m,5,6\n", {"a", "b"}, items);
  // No line for item k among the interactions, other orders of rows and columns.
  const auto other = data(head + "z,m,5,6\ny,l,3,4\nx,l,1,2\n", {"b", "a"}, "i,size,price\nm,9,3\nl,8,2\nk,7,1\n");
  EXPECT_THAT(data_change(first->contents(), other->contents()).unknown, IsEmpty());
  const DatasetPtr numbered = other->numbered_as(first->contents());
  const Batch batch = numbered->gather_once(Split::train, at::arange(3), 0);
  EXPECT_TRUE(at::equal(batch.at("item").flatten(), at::tensor({2, 1, 1}, at::kLong)));
  EXPECT_TRUE(
      at::equal(batch.at("item_features").view({3, 2}), at::tensor({3.f, 9.f, 2.f, 8.f, 2.f, 8.f}).view({3, 2})));
  EXPECT_TRUE(at::equal(batch.at("user_features"), at::tensor({5.f, 6.f, 3.f, 4.f, 1.f, 2.f}).view({3, 2})));
  EXPECT_FALSE(data_change(first->contents(), numbered->contents()).renumber);

  // User x has no line any more. The features of x, which other users' rows may need, come from the checkpoint.
  const auto fewer = data(head + "z,m,5,6\ny,l,3,4\n", {"b", "a"}, "i,size,price\nm,9,3\nl,8,2\n");
  EXPECT_THAT(data_change(first->contents(), fewer->contents()).unknown, IsEmpty());
  const auto kept = fewer->numbered_as(first->contents());
  EXPECT_TRUE(at::equal(kept->gather_once(Split::train, at::arange(2), 0).at("user_features"),
                        at::tensor({5.f, 6.f, 3.f, 4.f}).view({2, 2})));
  for (const char* table : {"item_features", "user_features"})
    EXPECT_EQ(kept->contents().lists.at(table).names, first->contents().lists.at(table).names) << table;
  // A checkpoint of an earlier version has no such tables.
  DataContents older = first->contents();
  older.lists.erase("item_features");
  older.lists.erase("user_features");
  EXPECT_THAT(data_change(older, other->contents()).unknown, IsEmpty());
  EXPECT_NO_THROW(other->numbered_as(older));
  try {
    fewer->numbered_as(older);
    ADD_FAILURE() << "features of item k and user x are nowhere";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::config);
    EXPECT_THAT(
        error.what(),
        ::testing::HasSubstr("no features of item 'k', and the checkpoint, from an earlier version, has none either"));
  }

  const auto dearer = data(head + "x,k,1,2\ny,l,3,4\nz,m,5,6\n", {"a", "b"}, "i,price,size\nk,1,7\nl,2,8\nm,4,9\n");
  EXPECT_THAT(data_change(first->contents(), dearer->contents()).other, ElementsAre("its contents differ"));
  const auto weighed = data(head + "x,k,1,2\ny,l,3,4\nz,m,5,6\n", {"a", "b"}, "i,price\nk,1\nl,2\nm,3\n");
  EXPECT_THAT(data_change(first->contents(), weighed->contents()).unknown,
              ElementsAre("item feature column 'size' is missing"));
}

TEST(NumberedAs, TheFingerprintDependsOnBytesAndNotOnThePath) {
  const WrittenFiles files;
  const std::string text = "u,i,a,b\nx,k,1,2\ny,l,3,4\n";
  const auto fingerprint = [&](const std::string& name, const std::string& written) {
    return read_interactions(files.write(name, written), with_context()).fingerprint;
  };
  EXPECT_EQ(fingerprint("one.csv", text), fingerprint("deeper/two.csv", text));
  EXPECT_NE(fingerprint("one.csv", text), fingerprint("three.csv", text + "z,m,5,6\n"));
}

std::string one_pixel() {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = image.width = 1;
  image.format = PNG_FORMAT_GRAY;
  std::string bytes(200, '\0');
  png_alloc_size_t size = bytes.size();
  EXPECT_NE(png_image_write_to_memory(&image, bytes.data(), &size, 0, "x", 0, nullptr), 0);
  bytes.resize(size);
  return bytes;
}

TEST(NumberedAs, ImagesUseStoredClasses) {
  const WrittenFiles files;
  ImagesDataset::Shape shape;
  shape.evaluate_fraction = 0;
  for (const char* name : {"a/cat/1.png", "a/dog/1.png", "b/dog/1.png"}) files.write(name, one_pixel());
  const ImagesDataset stored(files.path("a"), shape, 1), fewer(files.path("b/"), shape, 1);
  const DataChange change = data_change(stored.contents(), fewer.contents());
  EXPECT_THAT(change.unknown, IsEmpty());
  EXPECT_THAT(change.other, ElementsAre("class 'cat' is missing", "1 rows, 2 in the checkpoint"));
  const DatasetPtr numbered = fewer.numbered_as(stored.contents());
  EXPECT_EQ(numbered->schema().fields.at("target").cardinality, 2);
  EXPECT_EQ(numbered->gather_once(Split::train, at::zeros({1}, at::kLong), 0).at("target").item<int64_t>(), 1);
  files.write("b/zebra/1.png", "");
  EXPECT_THAT(data_change(stored.contents(), ImagesDataset(files.path("b"), shape, 1).contents()).unknown,
              ElementsAre("class 'zebra' is new, and not in the checkpoint"));
  // Another seed changes the split and not the data. A file of another size is other data.
  shape.evaluate_fraction = 0.5;
  const std::string before = stored.contents().fingerprint;
  EXPECT_EQ(ImagesDataset(files.path("a"), shape, 5).contents().fingerprint, before);
  // The same size and other bytes at the end.
  std::string other = one_pixel();
  other.back() = 'x';
  files.write("a/cat/1.png", other);
  DataContents changed = ImagesDataset(files.path("a"), shape, 5).contents();
  EXPECT_NE(changed.fingerprint, before);
  EXPECT_THAT(data_change(stored.contents(), changed).other, ElementsAre("its contents differ"));
  // A checkpoint of an earlier version has only names and sizes.
  changed.fingerprint = before.substr(0, before.find('-'));
  EXPECT_TRUE(data_change(changed, stored.contents()).none());
  files.write("a/cat/1.png", "longer");
  EXPECT_NE(ImagesDataset(files.path("a"), shape, 5).contents().fingerprint, before);
}

Json table_values(const std::string& path) {
  return {{"path", path},
          {"delimiter", ","},
          {"header", true},
          {"features", Json::array()},
          {"target", "kind"},
          {"task", "classification"},
          {"evaluate", {{"fraction", 0}}}};
}

TEST(NumberedAs, TablesUseStoredColumnsAndClasses) {
  const WrittenFiles files;
  const auto table = [&](const std::string& text) {
    return make_table(Options(table_values(files.write("t.csv", text))), 1);
  };
  const DatasetPtr stored = table("x,kind,y\n1,ash,2\n3,elm,4\n5,oak,6\n");
  EXPECT_THAT(stored->contents().lists.at("columns").names.strings(), ElementsAre("x", "y"));
  const DatasetPtr turned = table("y,x,kind\n6,5,oak\n8,7,ash\n");
  EXPECT_THAT(data_change(stored->contents(), turned->contents()).unknown, IsEmpty());
  const DatasetPtr numbered = turned->numbered_as(stored->contents());
  const Batch batch = numbered->gather_once(Split::train, at::arange(2), 0);
  EXPECT_TRUE(at::equal(batch.at("features"), at::tensor({5.f, 6.f, 7.f, 8.f}).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.at("target"), at::tensor({2, 0}, at::kLong)));
  EXPECT_EQ(numbered->schema().fields.at("target").cardinality, 3);
  EXPECT_THAT(data_change(stored->contents(), table("x,kind\n1,yew\n")->contents()).unknown,
              ElementsAre("class 'yew' is new, and not in the checkpoint", "column 'y' is missing"));
}

// Columns of a separate evaluation file are found by name too.
TEST(NumberedAs, EvaluationRowsHaveTheTrainingColumns) {
  const WrittenFiles files;
  Json values = table_values(files.write("t.csv", "x,kind,y\n1,ash,2\n3,elm,4\n"));
  values["evaluate"]["path"] = files.write("e.csv", "y,x,kind\n8,7,elm\n");
  const Batch batch = make_table(Options(values), 1)->gather_once(Split::evaluate, at::arange(1), 0);
  EXPECT_TRUE(at::equal(batch.at("features"), at::tensor({7.f, 8.f}).view({1, 2})));
  files.write("e.csv", "z,x,kind\n8,7,elm\n");
  try {
    make_table(Options(values), 1);
    ADD_FAILURE() << "a column that is not there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("column 'y' of the training data is not among z, x"));
  }
}

TEST(NumberedAs, TextUsesStoredTokens) {
  const WrittenFiles files;
  TextDataset::Shape shape;
  shape.length = 4;
  shape.evaluate_fraction = 0;
  const std::string path = files.write("text", "abcabcabcabc");
  shape.vocabulary = files.write("one", "a\nb\nc\n");
  const TextDataset stored(path, shape);
  shape.vocabulary = files.write("two", "c\na\nb\n");
  const TextDataset turned(path, shape);
  const DataChange change = data_change(stored.contents(), turned.contents());
  EXPECT_TRUE(change.none() && change.renumber);
  const at::Tensor rows = at::arange(2);
  EXPECT_TRUE(at::equal(turned.numbered_as(stored.contents())->gather_once(Split::train, rows, 0).at("tokens"),
                        stored.gather_once(Split::train, rows, 0).at("tokens")));
  shape.vocabulary = files.write("three", "a\nb\nc\nd\n");
  EXPECT_THAT(data_change(stored.contents(), TextDataset(path, shape).contents()).unknown,
              ElementsAre("token 'd' is new, and not in the checkpoint"));
  shape.vocabulary = "bytes";
  EXPECT_THAT(data_change(stored.contents(), TextDataset(path, shape).contents()).unknown,
              ElementsAre("it has no tokens, and the checkpoint has some"));
}

}  // namespace
}  // namespace convoy
