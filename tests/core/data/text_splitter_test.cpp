// Expressions of tokenizers: Unicode's classes, runs of spaces, bytes that are not UTF-8.
#include "core/data/formats/text_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> pieces(const TextSplitter& splitter, const std::string& text) {
  std::vector<std::string> all;
  splitter.each(text, [&](std::string_view piece, bool) { all.emplace_back(piece); });
  EXPECT_EQ(join(all, ""), text);
  return all;
}

TEST(TextSplitter, JoinsTheLastSpaceWithTheNextWord) {
  const TextSplitter gpt2(gpt2_pieces, "test");
  EXPECT_THAT(pieces(gpt2, "it's  two   words!"), ElementsAre("it", "'s", " ", " two", "  ", " words", "!"));
  EXPECT_THAT(pieces(gpt2, "a\n\nb\n\n"), ElementsAre("a", "\n", "\n", "b", "\n\n"));
  EXPECT_THAT(pieces(gpt2, " \n a"), ElementsAre(" \n", " a"));
  EXPECT_THAT(pieces(gpt2, "   "), ElementsAre("   "));
  EXPECT_THAT(pieces(gpt2, "x 12 3"), ElementsAre("x", " 12", " 3"));
  // U+3000 and U+00A0 are spaces that do not join with letters.
  EXPECT_THAT(pieces(gpt2, "a\u3000\u3000b\u00a0c"), ElementsAre("a", "\u3000", "\u3000", "b", "\u00a0", "c"));
  EXPECT_THAT(pieces(gpt2, "\u00e9t\u00e9 \u65e5\u672c \u0661\u0662"),
              ElementsAre("\u00e9t\u00e9", " \u65e5\u672c", " \u0661\u0662"));
  EXPECT_THAT(pieces(gpt2, ""), ElementsAre());
}

TEST(TextSplitter, KeepsRunsOfEarlierAlternativesWhole) {
  const TextSplitter llama(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                           R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                           "test");
  EXPECT_THAT(pieces(llama, "IT'S  12345\n\n x"), ElementsAre("IT", "'S", " ", " ", "123", "45", "\n\n", " x"));
  EXPECT_THAT(pieces(llama, "a   \n  b"), ElementsAre("a", "   \n", " ", " b"));
}

TEST(TextSplitter, KeepsInvalidUtf8AsAPiece) {
  const TextSplitter gpt2(gpt2_pieces, "test");
  EXPECT_THAT(pieces(gpt2, "ab\xff\xfe cd\xe2\x82"), ElementsAre("ab", "\xff\xfe", " cd", "\xe2\x82"));
}

TEST(TextSplitter, MatchesTheLongestLiteral) {
  const TextSplitter special(std::vector<std::string>{"<|a|>", "<|a|>b", "."});
  std::vector<std::string> found;
  special.each("x<|a|>b.<|a|>", [&](std::string_view piece, bool matched) {
    found.push_back((matched ? "+" : "-") + std::string(piece));
  });
  EXPECT_THAT(found, ElementsAre("-x", "+<|a|>b", "+.", "+<|a|>"));
}

TEST(TextSplitter, NamesAnUnsupportedExpression) {
  for (const char* expression : {"(?=a)b", "a(?<!b)", "[^\\S]", "(a"}) {
    try {
      const TextSplitter splitter(expression, "tokenizer.json");
      FAIL() << expression;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      EXPECT_THAT(error.what(), HasSubstr(str("tokenizer.json: the expression ", expression, " is not supported")));
    }
  }
}

}  // namespace
}  // namespace convoy
