#include "core/base/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/json.h"

namespace convoy {
namespace {

NamePattern pattern(const std::string& text) { return NamePattern(Options(Json{{"match", text}})); }

TEST(NamePattern, MatchesAnywhereInAName) {
  EXPECT_TRUE(pattern("\\.bias$").found_in("layers.0.bias"));
  EXPECT_FALSE(pattern("^bias").found_in("layers.0.bias"));
  EXPECT_TRUE(pattern("layers\\.[0-3]\\.").found_in("layers.2.weight"));
}

TEST(NamePattern, TakesTimeLinearInTheName) {
  EXPECT_FALSE(pattern("(.*)*(.*)*(.*)*(.*)*x").found_in(std::string(10000, 'a')));
  EXPECT_FALSE(pattern("(a+)+$").found_in(std::string(100000, 'a') + "!"));
}

TEST(NamePattern, RefusesAnInvalidPatternAtItsKey) {
  for (const char* text : {"(", "[", "(?=x)", "(a)\\1", "(((a{100}){100}){100})"}) try {
      pattern(text);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      EXPECT_EQ(error.key(), "match");
      EXPECT_THAT(error.what(), ::testing::HasSubstr("no regular expression"));
    }
}

}  // namespace
}  // namespace convoy
