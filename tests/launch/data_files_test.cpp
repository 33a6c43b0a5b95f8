#include "core/base/json.h"
#include "core/data/catalogue/catalogue.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convoy {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DataFiles : public ::testing::Test {
 protected:
  DataFiles() : root_(fs::temp_directory_path() / str("convoy-data-", getpid())) {
    fs::create_directories(root_);
    std::ofstream(root_ / "there") << "x";
  }
  ~DataFiles() override { fs::remove_all(root_); }
  std::string complaint(const std::string& name, const Json& values, Failure kind = Failure::config) {
    const Options options(values, {{"path", {"x.yaml", 3, 9}}, {"evaluate.path", {"x.yaml", 4, 2}}}, "data");
    try {
      check_data_files(name, options);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.what();
    }
    return "";
  }
  std::string file(const char* name, const std::string& text) {
    std::ofstream(root_ / name, std::ios::binary) << text;
    return at(name);
  }
  std::string at(const char* name) { return (root_ / name).string(); }
  fs::path root_;
};

TEST_F(DataFiles, ReportMissingFilesAtTheirKey) {
  EXPECT_EQ(complaint("interactions", {{"path", at("there")}}), "");
  const std::string none = complaint("interactions", {{"path", at("none.inter")}});
  EXPECT_THAT(none, StartsWith("x.yaml:3:9: data.path: " + at("none.inter") + ": no such file"));
  EXPECT_THAT(none, HasSubstr("your own file"));
  EXPECT_THAT(complaint("interactions", {{"path", at("ml-100k.inter")}}), HasSubstr("./quickstart"));
  EXPECT_THAT(complaint("interactions", {{"path", "no/such"}}), HasSubstr("from " + fs::current_path().string()));
  EXPECT_THAT(complaint("interactions", {{"path", root_.string()}}), HasSubstr("is a folder"));
}

TEST_F(DataFiles, EveryDataSetDeclaresItsFiles) {
  EXPECT_THAT(complaint("fashion_mnist", {{"path", root_.string()}}),
              HasSubstr("train-images-idx3-ubyte.gz is not there"));
  EXPECT_THAT(complaint("fashion_mnist", {{"path", at("none")}}), HasSubstr("dataset-fashion-mnist"));
  const Json table = {{"path", at("there")}, {"target_path", nullptr}, {"evaluate", {{"path", at("none")}}}};
  EXPECT_THAT(complaint("table", table), StartsWith("x.yaml:4:2: data.evaluate.path: "));
  EXPECT_EQ(complaint("synthetic", Json::object()), "");
  EXPECT_EQ(complaint("a_plugins", {{"path", at("none")}}), "");
}

// `convoy` checks the columns and the values of the first lines before any rank starts.
TEST_F(DataFiles, ColumnsOfATable) {
  const auto reported = [&](const std::string& text, const Json& more, Failure kind) {
    Json values = {{"path", file("rows.csv", text)},
                   {"delimiter", ","},
                   {"header", true},
                   {"features", Json::array()},
                   {"target", "target"},
                   {"weight", nullptr},
                   {"task", "classification"},
                   {"evaluate", {{"path", nullptr}}}};
    if (!more.is_null()) values.update(more);
    return complaint("table", values, kind);
  };
  const std::string rows = "x,y,target\n1,2,a\n3,4,b\n";
  EXPECT_EQ(reported(rows, {}, Failure::config), "");
  EXPECT_EQ(reported("1,2,a\n", {{"header", false}, {"target", "3"}}, Failure::config), "");
  EXPECT_THAT(reported(rows, {{"target", "tarket"}}, Failure::config),
              AllOf(HasSubstr("data.target: "), HasSubstr("no column 'tarket'"), HasSubstr("did you mean target?")));
  EXPECT_THAT(reported(rows, {{"features", {"x", "z"}}}, Failure::config), HasSubstr("data.features: "));
  EXPECT_THAT(reported(rows, {{"weight", "w"}}, Failure::config), HasSubstr("data.weight: "));
  EXPECT_THAT(reported(rows, {{"task", "regression"}}, Failure::corrupt_data),
              AllOf(StartsWith("x.yaml:3:9: data.path: "), HasSubstr("rows.csv:2:5: 'a' is not a number")));
  EXPECT_THAT(reported("x,target\nb,1\n", {}, Failure::corrupt_data), HasSubstr("rows.csv:2:1: 'b' is not a number"));
  EXPECT_THAT(reported("x,target\n1,\n", {}, Failure::corrupt_data), HasSubstr("the class is missing"));
  EXPECT_THAT(reported("x,target\n", {}, Failure::corrupt_data), HasSubstr("holds no rows"));
  EXPECT_THAT(
      reported(rows, {{"evaluate", {{"path", file("other.csv", "x,y,target\n1,,a\n")}}}}, Failure::corrupt_data),
      StartsWith("x.yaml:4:2: data.evaluate.path: "));
  // Ranks read what follows the first lines.
  std::string many = "x,target\n";
  for (int i = 0; i < 200000; ++i) many += "1,0\n";
  EXPECT_EQ(reported(many + "wrong,0\n", {}, Failure::corrupt_data), "");
}

TEST_F(DataFiles, ColumnsOfInteractions) {
  const auto reported = [&](const std::string& text, const Json& more, Failure kind) {
    Json columns = {{"user", "user_id"}, {"item", "item_id"}, {"time", nullptr}, {"weight", nullptr}};
    for (const char* list : {"context", "item_features", "user_features"}) columns[list] = Json::array();
    if (!more.is_null()) columns.update(more);
    return complaint("interactions",
                     {{"path", file("rows.csv", text)}, {"format", "auto"}, {"header", true}, {"columns", columns}},
                     kind);
  };
  const std::string rows = "user_id,item_id,when\nu,i,5\n";
  EXPECT_EQ(reported(rows, {}, Failure::config), "");
  EXPECT_THAT(reported(rows, {{"user", "user"}}, Failure::config), HasSubstr("data.columns.user: "));
  EXPECT_THAT(reported(rows, {{"context", {"hour"}}}, Failure::config), HasSubstr("data.columns.context: "));
  EXPECT_EQ(reported(rows, {{"time", "when"}}, Failure::config), "");
  EXPECT_THAT(reported("user_id,item_id,when\nu,i,now\n", {{"time", "when"}}, Failure::corrupt_data),
              AllOf(HasSubstr("data.columns.time: "), HasSubstr("'now' is not a number")));
  EXPECT_THAT(reported("user_id,item_id\n,i\n", {}, Failure::corrupt_data), HasSubstr("the user is missing"));
}

TEST_F(DataFiles, TokenizerVocabulariesAreNotLiteral) {
  const auto reported = [&](const std::string& json) {
    return complaint("text", {{"path", file("t.txt", "a text")},
                              {"format", "auto"},
                              {"vocabulary", file("vocab.json", json)},
                              {"unknown", "a"},
                              {"length", 2},
                              {"evaluate", {{"path", nullptr}}}});
  };
  EXPECT_THAT(reported(R"({"a": 0, "a</w>": 1, "the</w>": 2})"),
              AllOf(HasSubstr("data.vocabulary: "), HasSubstr("BPE (GPT-1, CLIP), where </w> ends a word")));
  EXPECT_EQ(reported(R"({"a": 0, " ": 1, "x</w>": 2, "y</w>": 3})"), "") << "its tokens have spaces";
}

TEST_F(DataFiles, VocabulariesOfJsonHaveEachNumberOnce) {
  const auto reported = [&](const std::string& json) {
    const Json values = {{"path", file("t.txt", "abcd")},
                         {"format", "auto"},
                         {"vocabulary", file("v.json", json)},
                         {"length", 2},
                         {"evaluate", {{"path", nullptr}}}};
    return complaint("text", values);
  };
  const std::string start = "data.vocabulary: " + at("v.json");
  EXPECT_THAT(reported("{\"a\": 0, \"b\": 1,\n \"d\": 3}"),
              HasSubstr(start + ":2:2: token 'd' has the number 3; those of 3 tokens are 0 to 2"));
  EXPECT_THAT(reported("{\"a\": 0, \"b\": 0}"), HasSubstr(start + ":1:10: tokens 'a' and 'b' both have the number 0"));
  EXPECT_THAT(reported("{\"a\": 0, \"b\": \"1\"}"), HasSubstr(start + ":1:10: token 'b' has the number \"1\""));
  EXPECT_THAT(reported("{\"a\": 0,\n!"), HasSubstr(start + ":2:1: is not JSON"));
  EXPECT_EQ(reported(R"({"c": 2, "a": 0, "b": 1, "d": 3})"), "");
}

TEST_F(DataFiles, BinaryFilesAreNoText) {
  const auto reported = [&](const std::string& bytes) {
    const Json values = {{"path", file("t.bin", bytes)},
                         {"format", "auto"},
                         {"vocabulary", "bytes"},
                         {"length", 2},
                         {"evaluate", {{"path", nullptr}}}};
    return complaint("text", values);
  };
  const std::string letters(100, 'a');
  for (const char* version : {"\x80\x02", "\x80\x03", "\x80\x04", "\x80\x05"})
    EXPECT_THAT(reported(version + letters),
                AllOf(HasSubstr("data.path: "), HasSubstr("is a pickle of Python; write its")));
  EXPECT_THAT(reported("PAR1" + letters + "PAR1"), HasSubstr("is a Parquet table; write its text to"));
  EXPECT_THAT(reported("\x1f\x8b" + letters), HasSubstr("compressed by gzip; decompress it first"));
  EXPECT_THAT(reported("PK\x03\x04" + letters), HasSubstr("is a ZIP archive"));
  EXPECT_THAT(reported("\x93NUMPY" + letters), HasSubstr("write data.format: npy"));
  EXPECT_THAT(
      reported(letters + "\x01\x02" + letters),  // tokens of 16 bits, without a NUL byte
      HasSubstr("holds the control byte 1 at byte 100, as files of token numbers do; for numbers of tokens write "
                "data.format: uint16 or uint32"));
  EXPECT_EQ(reported("PAR1 of 3\n" + letters), "");
  EXPECT_EQ(reported("printable\ttext\r\n\f\x1b[1m\xe9" + letters), "");
}

TEST_F(DataFiles, RowsOfArrays) {
  const auto npy = [&](const char* name, const std::string& shape) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
    header.resize(118, ' ');
    return file(name, std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + std::string(4096, '\0'));
  };
  const auto reported = [&](const std::string& target) {
    return complaint("table",
                     {{"path", npy("x.npy", "4, 7")},
                      {"target_path", target},
                      {"delimiter", ","},
                      {"evaluate", {{"path", nullptr}}}},
                     Failure::corrupt_data);
  };
  EXPECT_EQ(reported(npy("y.npy", "4,")), "");
  EXPECT_THAT(reported(npy("y.npy", "3,")),
              AllOf(HasSubstr("data.target_path: "), HasSubstr("holds 3 targets for the 4 rows")));
  EXPECT_THAT(reported(file("y.npy", "text")), HasSubstr("data.target_path: "));
}

}  // namespace
}  // namespace convoy
