#include "core/base/text.h"

#include <gtest/gtest.h>

namespace convoy {
namespace {

TEST(Text, Str) { EXPECT_EQ(str("a", 1, 'c', 2.5), "a1c2.5"); }

TEST(Text, Join) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
}

TEST(Text, CountedNouns) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "process", "processes"), "2 processes");
}

TEST(Text, NearestFindsTypingMistakes) {
  const std::vector<std::string> words{"optimizer", "model", "data", "epochs", "lr"};
  EXPECT_EQ(nearest("optimzer", words), "optimizer");
  EXPECT_EQ(nearest("optimiser", words), "optimizer");
  EXPECT_EQ(nearest("mdoel", words), "model");  // neighbours swapped: one slip
  EXPECT_EQ(nearest("Model", words), "model");
  EXPECT_EQ(nearest("epoch", words), "epochs");
  EXPECT_EQ(nearest("l", words), "lr");
}

TEST(Text, NearestReturnsNothingForOtherWords) {
  const std::vector<std::string> words{"optimizer", "model", "data", "lr"};
  EXPECT_EQ(nearest("strategy", words), "");
  EXPECT_EQ(nearest("xy", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("x", {"y"}), "");
  EXPECT_EQ(nearest(std::string(100000, 'm'), words), "");
  EXPECT_EQ(nearest("model", {}), "");
}

TEST(Text, NearestPrefersTheClosestWord) { EXPECT_EQ(nearest("steps", {"step", "steps"}), "steps"); }

TEST(Text, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(12.5 * 1024 * 1024), "12.5 MiB");
  EXPECT_EQ(human_bytes(1.25 * 1024 * 1024 * 1024), "1.25 GiB");
}

TEST(Text, HumanSeconds) {
  EXPECT_EQ(human_seconds(60), "60 s");
  EXPECT_EQ(human_seconds(1.2), "1.20 s");
  EXPECT_EQ(human_seconds(0.35), "350 ms");
  EXPECT_EQ(human_seconds(2e-6), "2 µs");
  EXPECT_EQ(human_seconds(125), "2 min 5 s");
  EXPECT_EQ(human_seconds(7500), "2 h 5 min");
  EXPECT_EQ(human_seconds(-5), "-5 s");
}

TEST(Text, RandomTokensDiffer) {
  EXPECT_EQ(random_token().size(), 32u);
  EXPECT_NE(random_token(), random_token());
}

}  // namespace
}  // namespace convoy
