#include "core/base/log.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace convoy {
namespace {

std::string written(log::Level level, const std::string& message) {
  ::testing::internal::CaptureStderr();
  log::write(level, message);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, WritesToStderrWithLevel) {
  const std::string line = written(log::Level::warning, "100% of {} {0}");
  EXPECT_NE(line.find(" warning: 100% of {} {0}\n"), std::string::npos) << line;
}

TEST(Log, DropsMessagesBelowItsLevel) {
  log::set_level(log::Level::warning);
  EXPECT_EQ(written(log::Level::info, "x"), "");
  EXPECT_NE(written(log::Level::error, "x"), "");
  log::set_level(log::Level::debug);
  EXPECT_NE(written(log::Level::debug, "x"), "");
  log::set_level(log::Level::info);
  EXPECT_EQ(written(log::Level::debug, "x"), "");
}

TEST(Log, LevelsByName) {
  EXPECT_EQ(log::level_named("debug"), log::Level::debug);
  EXPECT_EQ(log::level_named("error"), log::Level::error);
  EXPECT_THROW(log::level_named("loud"), Error);
}

}  // namespace
}  // namespace convoy
