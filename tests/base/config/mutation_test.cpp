// Random damage to a valid file ends in success or in an Error with a message.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "core/base/text.h"
#include "tests/support/config_text.h"
#include "tests/support/sanitizer.h"

namespace convoy {
namespace {

using testing::config_error;
using testing::valid_config;

const char* const rich_config = R"(# comment
name: try
plugins: []
model: {name: net, width: 8, layers: &l [32, 16], extra: {a: 1, "b.c": 2.5e-3}}
data:
  name: made
  rows: 1000
  transforms:
    - flip
    - {name: flip, share: .5}
optimizer:
  name: adam
  lr: 1.0e-3
  schedule: {name: warmup, over: 1 epoch}
train: {epochs: 3, batch: {global: 256}, evaluate_every: never}
strategy: "many"
backend: auto
launch: {ranks: 2, grace: 1.5 min, heartbeat: 30s}
)";

// Changes random bytes of the text. Most new bytes have a meaning in YAML or for the strict reader.
std::string damaged(std::string text, std::mt19937& random) {
  static const std::string meaningful = "{}[]:,-?&*!|>'\"%@`#~<$ \n\t\r0e.\\";
  const auto below = [&](size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(random); };
  const size_t changes = 1 + below(6);
  for (size_t i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = below(text.size());
    const char byte = below(4) == 0 ? static_cast<char>(below(256)) : meaningful[below(meaningful.size())];
    switch (below(5)) {
      case 0:
        text[at] = byte;
        break;
      case 1:
        text.insert(at, 1, byte);
        break;
      case 2:
        text.erase(at, 1 + below(8));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(40)));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

TEST(ConfigMutation, NeverCrashes) {
  ASSERT_EQ(config_error(rich_config), "no error");
  std::mt19937 random(20240607);
  int refused = 0;
  constexpr int rounds = rounds_of(2000);
  for (int i = 0; i < rounds; ++i) {
    const std::string text = damaged(rich_config, random);
    try {
      const std::string message = config_error(text);
      refused += message == "no error" ? 0 : 1;
      // The message has one line for each mistake, and their number if there are several.
      const auto lines = static_cast<size_t>(std::count(message.begin(), message.end(), '\n'));
      if (lines > 0) {
        ASSERT_THAT(message, ::testing::EndsWith(convoy::str("\n", lines, " mistakes"))) << text;
      }
      // A defect of convoy is an Error of another kind, which config_error puts first.
      ASSERT_NE(message.substr(0, 8), "internal") << message << "\n" << text;
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(refused, rounds / 2);
  EXPECT_LT(refused, rounds);
}

TEST(ConfigMutation, OverridesNeverCrash) {
  std::mt19937 random(7);
  for (int i = 0; i < rounds_of(2000); ++i) {
    const std::string assignment = damaged("model.layers.0={a: [1, 2], b: 3}", random);
    try {
      const std::string message = config_error(valid_config, {assignment});
      ASSERT_NE(message.substr(0, 8), "internal") << message << "\n" << assignment;
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << assignment;
    }
  }
}

}  // namespace
}  // namespace convoy
