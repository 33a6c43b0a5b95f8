// Interactions from a text that is long enough for several threads: results and errors equal those of one thread.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/data/readers/interactions_reader.h"

namespace convoy {
namespace {

using ::testing::HasSubstr;

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

InteractionColumns columns() {
  InteractionColumns made;
  made.user = "who";
  made.item = "what";
  made.time = "when";
  made.context = {"a", "b"};
  made.weight = "w";
  return made;
}

constexpr int text_rows = 150000;

// Users and items that first appear anywhere, and lines of different lengths.
std::string long_text() {
  std::string text = "who,what,when,a,b,w\n";
  for (int64_t row = 0; row < text_rows; ++row) {
    const int64_t user = row * 7919 % 5003 + row / 1000, item = row * 104729 % 997;
    text += str("user ", user, ",", row % 5 == 0 ? str("\"i,", item, "\"") : str("i", item), ",", double(row) * 0.25,
                ",", row % 17, ".5,-", row % 3, ",1\n");
  }
  return text;
}

Interactions parsed(const std::string& text, int threads) {
  const Threads those(threads);
  return parse_interactions("f.csv", text, columns());
}

std::string failure(const std::string& text, int threads) {
  try {
    parsed(text, threads);
  } catch (const Error& error) {
    return error.what();
  }
  return "no failure";
}

void expect_equal(const Interactions& a, const Interactions& b) {
  EXPECT_EQ(a.users, b.users);
  EXPECT_EQ(a.items, b.items);
  EXPECT_TRUE(at::equal(a.user, b.user));
  EXPECT_TRUE(at::equal(a.item, b.item));
  EXPECT_TRUE(at::equal(a.time, b.time));
  EXPECT_TRUE(at::equal(a.context, b.context));
  EXPECT_TRUE(at::equal(a.weight, b.weight));
}

TEST(LongText, SeveralThreadsReadTheSameTokens) {
  const std::string text = long_text();
  ASSERT_GT(text.size(), size_t(4) << 20);
  const Interactions one = parsed(text, 1);
  EXPECT_EQ(one.size(), text_rows);
  EXPECT_EQ(one.user[0].item<int>(), 0);
  for (int threads : {2, 3, 4}) expect_equal(one, parsed(text, threads));
  // Without a newline at the end, and with some too many.
  expect_equal(one, parsed(text.substr(0, text.size() - 1), 3));
  expect_equal(one, parsed(text + "\r\n\n\n", 3));
}

TEST(LongText, SeveralThreadsReportTheSameError) {
  const std::string good = long_text();
  // In the first part, in the middle and near the end.
  for (const size_t part : {size_t(20), good.size() / 2, good.size() - 200}) {
    const size_t line = good.find('\n', part) + 1;
    for (const char* wrong : {"u,i,not a number,1,2,3\n", "u,i,1,2\n", "u,i,1,2,3,4,5\n", "\n", ",i,1,2,3,4\n",
                              "u,i,1,2,3,-4\n", "\"u,i,1,2,3,4\n"}) {
      const std::string text = good.substr(0, line) + wrong + good.substr(line);
      const std::string message = failure(text, 1);
      EXPECT_THAT(message, HasSubstr("f.csv:"));
      EXPECT_EQ(failure(text, 3), message) << wrong;
    }
  }
}

}  // namespace
}  // namespace convoy
