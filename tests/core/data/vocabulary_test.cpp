// Vocabularies: longest match, round trip, invalid files.
#include "core/data/formats/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/random_keys.h"
#include "tests/core/data/written_files.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::WrittenFiles;

std::string message(const std::string& name, const std::string& contents) {
  const WrittenFiles files;
  try {
    Vocabulary::read(files.write(name, contents));
  } catch (const Error& error) {
    return std::string(error.kind() == Failure::corrupt_data ? "" : "wrong kind ") + error.what();
  }
  return "no error";
}

TEST(Vocabulary, MatchesTheLongestToken) {
  const Vocabulary words({"a", "ab", "abcd", "b", "c", "d"});
  EXPECT_THAT(words.encode("abcd", -1, "x"), ElementsAre(2));
  EXPECT_THAT(words.encode("abcab", -1, "x"), ElementsAre(1, 4, 1));  // abc leads nowhere: back to ab
  EXPECT_THAT(words.encode("", -1, "x"), ElementsAre());
  EXPECT_EQ(words.number_of("abc"), -1);
  EXPECT_EQ(words.number_of("abcd"), 2);
}

TEST(Vocabulary, DecodesAnyEncodedBytes) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (uint64_t i = 0; i < 500; ++i) {
    std::string token;
    for (uint64_t j = 0; j < 2 + i % 5; ++j) token += static_cast<char>('a' + random_below(1, i * 8 + j, 4));
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  const Vocabulary vocabulary(tokens);
  std::string text;
  for (uint64_t i = 0; i < 20000; ++i)
    text += static_cast<char>(random_below(2, i, 3) == 0 ? random_below(3, i, 256) : 'a' + random_below(4, i, 4));
  const auto encoded = vocabulary.encode(text, -1, "x");
  EXPECT_LT(encoded.size(), text.size() * 9 / 10);
  EXPECT_EQ(vocabulary.decode(encoded.data(), static_cast<int64_t>(encoded.size())), text);
}

TEST(Vocabulary, UnknownBytesAreATokenOrAnError) {
  const Vocabulary words({"<unk>", "the", " "});
  EXPECT_THAT(words.encode("the Q", 0, "x"), ElementsAre(1, 2, 0));
  try {
    words.encode("the Q", -1, "book.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::corrupt_data);
    EXPECT_THAT(error.what(), HasSubstr("book.txt: byte 4 (value 81) begins no token"));
  }
}

TEST(Vocabulary, ReadsLinesAndJson) {
  const WrittenFiles files;
  const Vocabulary lines = Vocabulary::read(files.write("v.txt", "the\n[\n\\n\\t\\s\\\\\\xFF\r\n"));
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines.token(1), "[");
  EXPECT_EQ(lines.token(2), "\n\t \\\xff");
  const Vocabulary list = Vocabulary::read(files.write("list.json", R"(["the", "\n", "é"])"));
  EXPECT_EQ(list.token(2), "\xc3\xa9");
  const Vocabulary map = Vocabulary::read(files.write("map.json", R"({"b": 1, "a": 0})"));
  EXPECT_EQ(map.token(0), "a");
  EXPECT_EQ(map.hash(), Vocabulary({"a", "b"}).hash());
  EXPECT_NE(map.hash(), Vocabulary({"b", "a"}).hash());
  EXPECT_NE(Vocabulary({"ab", "c"}).hash(), Vocabulary({"a", "bc"}).hash());
}

TEST(Vocabulary, ReportsMistakesWithTheirLocation) {
  EXPECT_THAT(message("v.txt", "a\n\nb\n"), HasSubstr("v.txt:2: the line is empty"));
  EXPECT_THAT(message("v.txt", "a\nb\\q\n"), HasSubstr("v.txt:2: a backslash stands before"));
  EXPECT_THAT(message("v.txt", "a\\x4"), HasSubstr("v.txt:1: a backslash"));
  EXPECT_THAT(message("v.txt", "a\nb\na\n"), HasSubstr("'a' is there twice, as number 0 and 2"));
  EXPECT_THAT(message("v.txt", " \n"), HasSubstr("holds no tokens"));
  EXPECT_THAT(message("v.json", "[\"a\", "), HasSubstr("v.json:1:7: is not JSON"));
  EXPECT_THAT(message("v.json", "{\"a\": 1e999}"), HasSubstr("is not JSON: a number is out of range"));
  EXPECT_THAT(message("v.json", "[\"a\", 3]"), HasSubstr("holds strings, and this one holds 3"));
  EXPECT_THAT(message("v.json", "[]"), HasSubstr("holds no tokens"));
  EXPECT_THAT(message("v.json", R"({"a": 0, "b": 2})"),
              HasSubstr("token 'b' has the number 2; those of 2 tokens are 0 to 1"));
  EXPECT_THAT(message("v.json", R"({"a": 0, "b": 0})"), HasSubstr("both have the number 0"));
  EXPECT_THAT(message("v.json", R"({"": 0})"), HasSubstr("token number 0 is empty"));
  EXPECT_THROW(Vocabulary::read("/nowhere/v.txt"), Error);
}

}  // namespace
}  // namespace convoy
