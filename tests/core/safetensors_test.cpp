// The format: written files are read, and changed ones are refused without a crash.
#include "core/tensors/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "tests/support/temporary_folder.h"

namespace convoy {
namespace {

using Entries = std::vector<std::pair<std::string, at::Tensor>>;

void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::streamsize(bytes.size()));
}
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\1');
}

TEST(Safetensors, ReadsBackItsOutput) {
  const TemporaryFolder folder;
  Entries entries;
  for (auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                     at::kFloat, at::kDouble}) {
    entries.emplace_back(convoy::str("odd \"name\" ", dtype), at::arange(7).remainder(2).to(dtype));
  }
  entries.emplace_back("scalar", at::full({}, 2.5));
  entries.emplace_back("empty", at::empty({0, 4}));
  entries.emplace_back("strided", at::arange(12, at::kFloat).reshape({3, 4}).t());
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  const WrittenFile written = write_safetensors(folder / "a", entries, metadata);

  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), entries.size());
  for (const auto& [name, tensor] : entries) {
    ASSERT_TRUE(file.has(name)) << name;
    EXPECT_EQ(file.tensor(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(file.tensor(name).equal(tensor)) << name;
  }
  EXPECT_EQ(written.bytes, int64_t(std::filesystem::file_size(folder / "a")));
  EXPECT_EQ(written.hash, file.hash());
  const std::string bytes = read_file(folder / "a", 1 << 20);
  EXPECT_EQ(written.hash, hash_hex(bytes.data(), bytes.size()));
}

TEST(Safetensors, WritesEqualBytesForEqualTensors) {
  const TemporaryFolder folder;
  const Entries entries{{"a", at::ones({3})}, {"b", at::zeros({2}, at::kDouble)}};
  EXPECT_EQ(write_safetensors(folder / "a", entries, {}).hash, write_safetensors(folder / "b", entries, {}).hash);
}

TEST(Safetensors, TensorsOutliveTheFile) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", {{"x", at::arange(100)}}, {});
  at::Tensor x;
  {
    const SafetensorsFile file(folder / "a");
    x = file.tensor("x");
  }
  EXPECT_EQ(x.sum().item<int64_t>(), 4950);
}

TEST(Safetensors, LargeAndSmallWritesKeepTheirOrder) {
  const TemporaryFolder folder;
  Entries entries;
  for (int i = 0; i < 40; ++i) entries.emplace_back(str("t", i), at::full({i % 3 == 0 ? 400000 : 7}, i));
  write_safetensors(folder / "a", entries, {});
  const SafetensorsFile file(folder / "a");
  for (const auto& [name, tensor] : entries) EXPECT_TRUE(file.tensor(name).equal(tensor)) << name;
}

TEST(Safetensors, RefusesEveryKindOfDamage) {
  const TemporaryFolder folder;
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  put(folder / "good", file_of(good, 8));
  EXPECT_NO_THROW(SafetensorsFile(folder / "good"));

  std::string overlong = file_of(good, 8);
  overlong[5] = '\1';  // a header of a tebibyte
  const std::pair<const char*, std::string> cases[] = {
      {"empty", ""},
      {"shorter than the length", "abc"},
      {"header longer than the file", overlong},
      {"data cut", file_of(good, 7)},
      {"data left over", file_of(good, 9)},
      {"no JSON", file_of("{nonsense", 8)},
      {"a list", file_of("[1,2]", 8)},
      {"twice the same name", file_of(good.substr(0, good.size() - 1) + "," + good.substr(1), 8)},
      {"unknown dtype", file_of(R"({"a":{"dtype":"F7","shape":[2],"data_offsets":[0,8]}})", 8)},
      {"dtype missing", file_of(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8)},
      {"negative size", file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)},
      {"size no number", file_of(R"({"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", 8)},
      {"another size", file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8)},
      {"overflow", file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0)},
      {"offsets backwards", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8)},
      {"offset beyond 64 bits",
       file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", 8)},
      {"three offsets", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8)},
      {"overlap", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                          R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                          12)},
      {"gap", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
                      16)},
      {"metadata no text", file_of(R"({"__metadata__":{"a":1}})", 0)},
      {"nested deeply", file_of("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0)},
  };
  for (const auto& [what, bytes] : cases) {
    put(folder / "bad", bytes);
    try {
      SafetensorsFile(folder / "bad");
      ADD_FAILURE() << what << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::corrupt_data) << what;
      EXPECT_NE(std::string(error.what()).find(folder / "bad"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(SafetensorsFile(folder / "absent"), Error);
}

// Any bit of the header flipped, any length: an Error, or a file that reads within its bounds.
TEST(Safetensors, RefusesFlippedAndTruncatedHeaders) {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", {{"x", at::arange(6).to(at::kFloat)}, {"yy", at::ones({2, 3}, at::kByte)}},
                    {{"k", "v"}});
  const std::string good = read_file(folder / "a", 1 << 20);
  const size_t header_end = good.find('}', good.rfind("data_offsets")) + 2;
  int refused = 0;
  const auto read_all = [&](const std::string& bytes) {
    put(folder / "b", bytes);
    try {
      const SafetensorsFile file(folder / "b");
      for (const std::string& name : file.names()) (void)file.tensor(name).to(at::kDouble).sum().item<double>();
    } catch (const Error&) {
      ++refused;
    }
  };
  for (size_t at = 0; at < header_end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[at] = char(bytes[at] ^ 1 << bit);
      read_all(bytes);
    }
  }
  EXPECT_GT(refused, int(header_end) * 4);
  refused = 0;
  for (size_t length = 0; length < good.size(); ++length) read_all(good.substr(0, length));
  EXPECT_EQ(refused, int(good.size()));
}

}  // namespace
}  // namespace convoy
