// IDX files: plain ones are mapped, and those in gzip are read from a cache in the user's folder.
#include "core/data/sets/fashion_mnist.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

std::string idx(const std::vector<unsigned>& shape, const std::string& bytes) {
  std::string text{'\0', '\0', '\x08', static_cast<char>(shape.size())};
  for (unsigned size : shape)
    for (int shift : {24, 16, 8, 0}) text += static_cast<char>(size >> shift & 255);
  return text + bytes;
}

// True if this process maps the file.
bool mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return text.str().find(path) != std::string::npos;
}

TEST(FashionMnist, MapsPlainFiles) {
  const testing::WrittenFiles files;
  for (const char* part : {"train", "t10k"}) {
    files.write(str(part, "-images-idx3-ubyte"),
                idx({3, 2, 2}, std::string("\x00\x33\x66\x99\xcc\xff\x01\x02\x03\x04\x05\x06", 12)));
    files.write(str(part, "-labels-idx1-ubyte"), idx({3}, std::string("\x02\x0b\x00", 3)));
  }
  {
    const FashionMnist data(files.folder());
    EXPECT_TRUE(mapped(files.path("train-images-idx3-ubyte")));
    const Batch batch = data.gather_once(Split::train, at::tensor({1, 0}, at::kLong), 0);
    EXPECT_FLOAT_EQ(batch.at("features")[0][0][0][1].item<float>(), 1.f);
    EXPECT_EQ(batch.at("target")[0].item<int64_t>(), 11);
    EXPECT_EQ(data.schema().fields.at("target").cardinality, 12);
  }
  const auto message = [&] {
    try {
      FashionMnist data(files.folder());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  files.write("t10k-labels-idx1-ubyte", idx({4}, "abc"));
  EXPECT_THAT(message(), HasSubstr("t10k-labels-idx1-ubyte: ends too early"));
  files.write("t10k-labels-idx1-ubyte", idx({3}, "abcd"));
  EXPECT_THAT(message(), HasSubstr("is longer than the sizes in its header"));
  files.write("t10k-labels-idx1-ubyte", idx({3, 1}, "abc"));
  EXPECT_THAT(message(), HasSubstr("is not an IDX file of bytes in 1 dimensions"));
}

TEST(FashionMnist, MapsDecodedFilesOfTheUsersCache) {
  const std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder + "/train-images-idx3-ubyte.gz"))
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const testing::WrittenFiles files;
  const char* before = getenv("XDG_CACHE_HOME");
  const std::string kept = before ? before : "";
  setenv("XDG_CACHE_HOME", files.folder().c_str(), 1);
  const FashionMnist data(folder);
  EXPECT_TRUE(mapped(files.folder() + "/convoy/")) << "what was just decoded is mapped too";
  const auto caches = [&] {
    std::map<std::string, std::filesystem::file_time_type> found;
    for (const auto& entry : std::filesystem::directory_iterator(files.folder() + "/convoy"))
      found[entry.path().filename().string()] = entry.last_write_time();
    return found;
  };
  const auto first = caches();
  EXPECT_EQ(first.size(), 4u);
  const FashionMnist again(folder);
  EXPECT_EQ(caches(), first) << "nothing was decoded again";
  const at::Tensor some = at::arange(100, at::kLong);
  EXPECT_TRUE(at::equal(data.gather_once(Split::train, some, 0).at("features"),
                        again.gather_once(Split::train, some, 0).at("features")));
  if (before)
    setenv("XDG_CACHE_HOME", kept.c_str(), 1);
  else
    unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace convoy
