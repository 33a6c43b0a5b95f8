#include "core/base/error.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

TEST(Error, ReadsFailuresBackFromTheirNames) {
  for (int i = 0; i <= static_cast<int>(Failure::internal); ++i) {
    const auto kind = static_cast<Failure>(i);
    EXPECT_EQ(failure_named(name_of(kind)), kind) << i;
  }
  EXPECT_EQ(failure_named("nonsense"), Failure::internal);
}

TEST(Error, ConfigErrorHasLocationKeyAndReason) {
  const ConfigError error({"x.yaml", 3, 7}, "train.epochs", "is too small");
  EXPECT_STREQ(error.what(), "x.yaml:3:7: train.epochs: is too small");
  EXPECT_EQ(error.kind(), Failure::config);
  EXPECT_EQ(error.key(), "train.epochs");
  EXPECT_EQ(error.location().line, 3);
}

TEST(Error, ConfigErrorLeavesOutUnknownParts) {
  EXPECT_STREQ(ConfigError({"--set a=1", 0, 0}, "a", "b").what(), "--set a=1: a: b");
  EXPECT_STREQ(ConfigError({"x.yaml", 1, 1}, "", "b").what(), "x.yaml:1:1: b");
  EXPECT_STREQ(ConfigError({}, "a", "b").what(), "a: b");
  EXPECT_EQ(ConfigError({}, "a", "b", Failure::refused).kind(), Failure::refused);
}

TEST(Error, CheckNamesConditionAndSourceLine) {
  try {
    CONVOY_CHECK(1 + 1 == 3, "sums of ", 2);
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), Failure::internal);
    EXPECT_NE(message.find("sums of 2 (1 + 1 == 3 is false at "), std::string::npos) << message;
    EXPECT_NE(message.find("error_test.cpp:"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace convoy
