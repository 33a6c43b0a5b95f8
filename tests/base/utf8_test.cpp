#include "core/base/text.h"

#include <gtest/gtest.h>

#include "core/control/channel.h"

namespace convoy {
namespace {

TEST(Utf8, ReplacesInvalidBytes) {
  EXPECT_EQ(valid_utf8("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\x9a"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\x9a");
  EXPECT_EQ(valid_utf8("a\xff\x62"), "a?b");
  EXPECT_EQ(valid_utf8("\xc3"), "?");                 // cut off
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "??");            // an overlong slash
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "???");       // half of a surrogate pair
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "????");  // beyond the last
}

TEST(Utf8, RemovesTerminalCommands) {
  EXPECT_EQ(terminal_safe("gr\xc3\xbc\xc3\x9f\t\xe2\x82\xac\n"), "gr\xc3\xbc\xc3\x9f\t\xe2\x82\xac\n");
  EXPECT_EQ(terminal_safe("\x1b[2J\r\x07\x7f"), "\\x1b[2J\\x0d\\x07\\x7f");
  EXPECT_EQ(terminal_safe("a\xff\xfe z"), "a\\xff\\xfe z");
  EXPECT_EQ(terminal_safe("\xc2\x9b"
                          "2J"),
            "\\xc2\\x9b2J");  // U+009B begins a command in one character
}

TEST(Utf8, TruncatesBetweenCharacters) {
  const std::string text = "a\xe2\x82\xac";
  EXPECT_EQ(utf8_prefix(text.data(), text.size(), 9), 4u);
  EXPECT_EQ(utf8_prefix(text.data(), text.size(), 4), 4u);
  EXPECT_EQ(utf8_prefix(text.data(), text.size(), 3), 1u);
  EXPECT_EQ(utf8_prefix(text.data(), text.size(), 1), 1u);
}

// Messages of libraries may be any bytes; they must still reach the summary.
TEST(Utf8, WritesAnAbortAsValidJson) {
  const Abort abort{Failure::training, 1, 2, 0, "h", "broken: \xff\xfe"};
  EXPECT_EQ(Json::parse(to_json(abort).dump()).at("message"), "broken: ??");
}

}  // namespace
}  // namespace convoy
