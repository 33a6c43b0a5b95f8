// Files of tokens: types, truncated files, tokens outside of the vocabulary.
#include "core/data/formats/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/error.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Token>
std::string raw(const std::vector<Token>& tokens) {
  std::string bytes(tokens.size() * sizeof(Token), '\0');
  std::memcpy(bytes.data(), tokens.data(), bytes.size());
  return bytes;
}

std::string npy_of(const std::string& type, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(118, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + data;
}

std::vector<int64_t> tokens_of(const std::string& format, const std::string& text) {
  const TokenFile file = read_token_file(format, "t.npy", text);
  std::vector<int64_t> tokens(static_cast<size_t>(file.count));
  copy_tokens(file, text, 0, file.count, tokens.data());
  return tokens;
}

std::string message_of(const std::string& format, const std::string& text, int64_t size = 100) {
  try {
    const TokenFile file = read_token_file(format, "t.npy", text);
    check_tokens(file, "t.npy", text, 0, file.count, size);
  } catch (const Error& error) {
    return std::string(error.kind() == Failure::corrupt_data ? "" : "wrong kind ") + error.what();
  }
  return "no error";
}

TEST(TokenFile, ReadsEveryType) {
  EXPECT_THAT(tokens_of("uint16", raw<uint16_t>({1, 65535, 3})), ElementsAre(1, 65535, 3));
  EXPECT_THAT(tokens_of("uint32", raw<uint32_t>({1, 70000})), ElementsAre(1, 70000));
  EXPECT_THAT(tokens_of("auto", npy_of("<u2", "2,", raw<uint16_t>({5, 6}))), ElementsAre(5, 6));
  EXPECT_THAT(tokens_of("npy", npy_of("<u4", "2,", raw<uint32_t>({5, 6}))), ElementsAre(5, 6));
  EXPECT_THAT(tokens_of("npy", npy_of("<i4", "2,", raw<int32_t>({5, 6}))), ElementsAre(5, 6));
  EXPECT_THAT(tokens_of("npy", npy_of("<i8", "1,", raw<int64_t>({5}))), ElementsAre(5));
  EXPECT_THAT(tokens_of("npy", npy_of("|u1", "1,", "\x07")), ElementsAre(7));
  EXPECT_TRUE(holds_tokens("auto", "a.npy"));
  EXPECT_FALSE(holds_tokens("auto", "a.txt"));
  EXPECT_FALSE(holds_tokens("text", "a.npy"));
  EXPECT_TRUE(holds_tokens("uint16", "a.bin"));
}

TEST(TokenFile, ReportsMistakes) {
  const std::string two = raw<uint16_t>({5, 6});
  EXPECT_EQ(message_of("npy", npy_of("<u2", "2,", two)), "no error");
  EXPECT_THAT(message_of("npy", npy_of("<u2", "3,", two)), HasSubstr("declares 3 tokens, but the file has 2"));
  EXPECT_THAT(message_of("npy", npy_of("<f4", "1,", two)), HasSubstr("numbers of type <f4"));
  EXPECT_THAT(message_of("npy", npy_of(">u2", "2,", two)), HasSubstr("numbers of type >u2"));
  EXPECT_THAT(message_of("npy", npy_of("<u2", "1, 2", two)), HasSubstr("has the shape [1, 2]"));
  EXPECT_THAT(message_of("npy", "not numpy at all"), HasSubstr("is not an .npy file"));
  EXPECT_THAT(message_of("uint32", two + "xy"), HasSubstr("no whole number of tokens of 4 bytes"));
  EXPECT_THAT(message_of("uint16", two + "x"),
              HasSubstr("has 5 bytes, which are no whole number of tokens of 2 bytes"));
  EXPECT_THAT(message_of("uint16", npy_of("<u2", "2,", two)), HasSubstr("is an .npy array"));
  EXPECT_THAT(message_of("npy", npy_of("<u2", "2,", two), 6),
              HasSubstr("token 1 (byte 130) is 6, and the vocabulary has 0 to 5"));
  EXPECT_THAT(message_of("npy", npy_of("<i4", "2,", raw<int32_t>({3, -1}))), HasSubstr("token 1 (byte 132) is -1"));
}

}  // namespace
}  // namespace convoy
