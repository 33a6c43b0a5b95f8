// Tables from CSV, .npy and safetensors, and how they are split.
#include "core/data/sets/table.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/tensors/safetensors.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Tables : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / str("convoy-table-", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return path;
  }
  static std::string npy(const std::string& dictionary, const std::string& data) {
    std::string header = dictionary;
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string text("\x93NUMPY\x01\x00", 8);
    text += char(header.size() & 255);
    text += char(header.size() >> 8);
    return text + header + data;
  }
  template <class Call>
  static std::string failure(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no failure";
  }

  fs::path folder_;
};

TableOptions classes() {
  TableOptions options;
  options.target = "kind";
  return options;
}

TEST_F(Tables, NumberCsvClassesByName) {
  const auto part = read_table(write("a.csv", "x,kind,y\n1,oak,2\n3,ash,4\n5,oak,6\n"), classes());
  EXPECT_TRUE(at::equal(part.features, at::tensor({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}).view({3, 2})));
  EXPECT_EQ(part.labels, (std::vector<std::string>{"ash", "oak"}));
  EXPECT_TRUE(at::equal(part.target, at::tensor({1, 0, 1}, at::kLong)));
}

TEST_F(Tables, KeepTheOrderOfNumberedClasses) {
  const auto part = read_table(write("a.csv", "kind,x\n10,0\n9,0\n0,0\n"), classes());
  EXPECT_EQ(part.labels, (std::vector<std::string>{"0", "9", "10"}));
}

TEST_F(Tables, CsvRegressionWithChosenColumnsAndWeight) {
  TableOptions options;
  options.classification = false;
  options.target = "y";
  options.features = {"c", "a"};
  options.weight = "w";
  const auto part = read_table(write("a.csv", "a,b,c,w,y\n1,2,3,0.5,7.5\n4,5,6,1,-1\n"), options);
  EXPECT_TRUE(at::equal(part.features, at::tensor({3.f, 1.f, 6.f, 4.f}).view({2, 2})));
  EXPECT_TRUE(at::equal(part.target, at::tensor({7.5f, -1.f})));
  EXPECT_TRUE(at::equal(part.weight, at::tensor({0.5f, 1.f})));
}

TEST_F(Tables, ReportCsvErrorsWithTheirLocation) {
  const auto bad = write("a.csv", "x,kind\n1,a\nzwei,b\n");
  EXPECT_THAT(failure([&] { read_table(bad, classes()); }), HasSubstr("a.csv:3:1: 'zwei' is not a number"));
  const auto none = write("b.csv", "x,kind\n1,\n");
  EXPECT_THAT(failure([&] { read_table(none, classes()); }), HasSubstr("b.csv:2:3: the class is missing"));
  EXPECT_THAT(failure([&] { read_table(write("c.csv", "x,kind\n"), classes()); }), HasSubstr("holds no rows"));
}

TEST_F(Tables, ReadNumpyArrays) {
  const std::string data("\x01\x02\x03\x04\x05\x06", 6);
  const auto x = write("x.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2), }", data));
  const auto y = write("y.npy", npy("{'descr': '|i1', 'fortran_order': False, 'shape': (3,), }", data.substr(0, 3)));
  TableOptions options;
  options.target_path = y;
  const auto part = read_table(x, options);
  EXPECT_TRUE(at::equal(part.features, at::tensor({1, 2, 3, 4, 5, 6}, at::kByte).view({3, 2})));
  const Table table(part, std::nullopt, 0, true, 0, 1);
  EXPECT_EQ(table.schema().fields.at("target").cardinality, 4);
  const Batch batch = table.gather_once(Split::train, at::tensor({2, 0}, at::kLong), 0);
  EXPECT_TRUE(at::equal(batch.at("features"), at::tensor({5.f, 6.f, 1.f, 2.f}).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.at("target"), at::tensor({3, 1}, at::kLong)));
}

TEST_F(Tables, RefuseBadNumpyFiles) {
  const auto refused = [&](const std::string& text) { return failure([&] { read_npy(write("bad.npy", text)); }); };
  const std::string four(4, '\0');
  EXPECT_THAT(refused("hello"), HasSubstr("is not an .npy file"));
  EXPECT_THAT(refused(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", four)), HasSubstr("type |O"));
  EXPECT_THAT(refused(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", four)), HasSubstr("Fortran"));
  EXPECT_THAT(refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", four)), HasSubstr("4 bytes"));
  EXPECT_THAT(refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", four)),
              HasSubstr("single number"));
  EXPECT_THAT(refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000), }", four)),
              HasSubstr("impossible"));
  EXPECT_THAT(refused(std::string("\x93NUMPY\x01\x00\xff\xff", 10) + four), HasSubstr("header"));
}

TEST_F(Tables, ReadSafetensorsArrays) {
  const auto path = (folder_ / "a.safetensors").string();
  write_safetensors(
      path, {{"features", at::arange(12, at::kDouble).view({4, 3})}, {"label", at::tensor({0, 2, 1, 2}, at::kInt)}},
      {});
  TableOptions options;
  options.target = "label";
  const auto part = read_table(path, options);
  EXPECT_EQ(part.features.sizes(), (std::vector<int64_t>{4, 3}));
  options.target = "lable";
  EXPECT_THAT(failure([&] { read_table(path, options); }), HasSubstr("no tensor 'lable'"));
  options.target = "features";
  EXPECT_THAT(failure([&] { read_table(path, options); }), HasSubstr("whole numbers"));
}

TEST_F(Tables, SplitOffAFractionBySeed) {
  TableData part;
  part.features = at::arange(100, at::kFloat).unsqueeze(1);
  part.target = at::zeros({100}, at::kLong);
  const auto rows = [](const Table& table, Split split) {
    return table.gather_once(split, at::arange(table.size(split), at::kLong), 0).at("features").flatten();
  };
  const Table one(part, std::nullopt, 0.25, true, 2, 1), other(part, std::nullopt, 0.25, true, 2, 2);
  EXPECT_EQ(one.size(Split::train), 75);
  EXPECT_EQ(one.size(Split::evaluate), 25);
  const auto both = at::cat({rows(one, Split::train), rows(one, Split::evaluate)});
  EXPECT_TRUE(at::equal(std::get<0>(both.sort()), at::arange(100, at::kFloat)));
  EXPECT_FALSE(at::equal(rows(one, Split::evaluate), rows(other, Split::evaluate)));
}

TEST_F(Tables, EvaluationFilesUseTheTrainingClasses) {
  Json values{{"path", write("a.csv", "x,kind\n1,b\n2,a\n3,c\n")},
              {"delimiter", ","},
              {"header", true},
              {"features", Json::array()},
              {"target", "kind"},
              {"task", "classification"},
              {"evaluate", {{"fraction", 0.1}, {"path", write("b.csv", "x,kind\n7,c\n")}}}};
  const auto table = make_table(Options(values), 1);
  EXPECT_EQ(table->size(Split::train), 3);
  const Batch batch = table->gather_once(Split::evaluate, at::tensor({0}, at::kLong), 0);
  EXPECT_EQ(batch.at("target").item<int64_t>(), 2);
  write("b.csv", "x,kind\n7,d\n");
  EXPECT_THAT(failure([&] { make_table(Options(values), 1); }), HasSubstr("class 'd' does not occur"));
}

}  // namespace
}  // namespace convoy
