#include "core/data/data_files.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convoy {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

class DataFiles : public testing::Test {
 protected:
  DataFiles() : root_(fs::temp_directory_path() / str("convoy-data-", getpid())) {
    fs::create_directories(root_);
    std::ofstream(root_ / "there") << "x";
  }
  ~DataFiles() override { fs::remove_all(root_); }
  std::string complaint(const std::string& name, const Json& values) {
    const Options options(values, {{"path", {"x.yaml", 3, 9}}, {"evaluate.path", {"x.yaml", 4, 2}}}, "data");
    try {
      check_data_files(name, options);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "";
  }
  std::string at(const char* name) { return (root_ / name).string(); }
  fs::path root_;
};

TEST_F(DataFiles, WhatIsNotThereIsSaidAtItsKey) {
  EXPECT_EQ(complaint("interactions", {{"path", at("there")}}), "");
  const std::string none = complaint("interactions", {{"path", at("none.inter")}});
  EXPECT_THAT(none, StartsWith("x.yaml:3:9: data.path: " + at("none.inter") + ": no such file"));
  EXPECT_THAT(none, HasSubstr("./quickstart"));
  EXPECT_THAT(complaint("interactions", {{"path", "no/such"}}), HasSubstr("from " + fs::current_path().string()));
  EXPECT_THAT(complaint("interactions", {{"path", root_.string()}}), HasSubstr("is a folder"));
}

TEST_F(DataFiles, EveryDataSetHasItsOwn) {
  EXPECT_THAT(complaint("fashion_mnist", {{"path", root_.string()}}),
              HasSubstr("train-images-idx3-ubyte.gz is not there"));
  EXPECT_THAT(complaint("fashion_mnist", {{"path", at("none")}}), HasSubstr("dataset-fashion-mnist"));
  const Json table = {{"path", at("there")}, {"target_path", nullptr}, {"evaluate", {{"path", at("none")}}}};
  EXPECT_THAT(complaint("table", table), StartsWith("x.yaml:4:2: data.evaluate.path: "));
  EXPECT_EQ(complaint("synthetic", Json::object()), "");
  EXPECT_EQ(complaint("a_plugins", {{"path", at("none")}}), "");
}

}  // namespace
}  // namespace convoy
