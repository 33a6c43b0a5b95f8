#include "launch/text/text_table.h"

#include <gmock/gmock.h>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FoldedText : public ::testing::Test {
 protected:
  void add(int rank, const std::string& line, const std::string& host = "h") { folder_.add(now_, host, rank, line); }
  std::vector<std::string> printed_;
  LineMerger folder_{3, std::chrono::milliseconds(100), [this](const std::string& line) { printed_.push_back(line); }};
  LineMerger::Clock::time_point now_{};
};

TEST_F(FoldedText, MergesEqualLinesOfAllRanks) {
  add(0, "2026-01-02 03:04:05.678 info: hello");
  add(2, "2026-01-02 03:04:05.679 info: hello");
  EXPECT_THAT(printed_, IsEmpty());
  add(1, "2026-01-02 03:04:05.680 info: hello");
  EXPECT_THAT(printed_, ElementsAre("h:0-2 | 2026-01-02 03:04:05.678 info: hello"));
}

TEST_F(FoldedText, PrintsALineOfOneRankAfterTheWindow) {
  add(1, "alone");
  folder_.flush(now_ + std::chrono::milliseconds(50));
  EXPECT_THAT(printed_, IsEmpty());
  folder_.flush(now_ + std::chrono::milliseconds(100));
  EXPECT_THAT(printed_, ElementsAre("h:1 | alone"));
}

TEST_F(FoldedText, KeepsTheOrderOfLines) {
  add(0, "a");
  add(0, "b");
  for (int rank : {1, 2}) add(rank, "b");
  EXPECT_THAT(printed_, IsEmpty());  // "a" came first
  folder_.flush_all();
  EXPECT_THAT(printed_, ElementsAre("h:0 | a", "h:0-2 | b"));
}

TEST_F(FoldedText, PrintsRepeatedLinesOfARank) {
  add(0, "again");
  add(0, "again");
  folder_.flush_all();
  EXPECT_THAT(printed_, ElementsAre("h:0 | again", "h:0 | again"));
}

TEST_F(FoldedText, DoesNotPrintDroppedLines) {
  add(0, "2026-01-02 03:04:05.678 error: x");
  add(1, "2026-01-02 03:04:05.678 error: x y");
  folder_.drop([](const std::string& line) { return line == "error: x"; });
  folder_.flush_all();
  EXPECT_THAT(printed_, ElementsAre("h:1 | 2026-01-02 03:04:05.678 error: x y"));
}

TEST_F(FoldedText, NamesHosts) {
  add(0, "x", "a");
  add(1, "x", "b");
  add(2, "x", "b");
  EXPECT_THAT(printed_, ElementsAre("a:0,b:1-2 | x"));
}

TEST(Ranges, PrintTheShortestForm) {
  EXPECT_EQ(ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(ranges({}), "");
}

TEST(WithoutTime, RemovesOnlyConvoysTime) {
  EXPECT_EQ(without_time("2026-01-02 03:04:05.678 info: x"), "info: x");
  EXPECT_EQ(without_time("2026: a year"), "2026: a year");
}

}  // namespace
}  // namespace convoy
