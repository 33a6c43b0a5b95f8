// model.init_from: a path or a map, its patterns, and its checks before ranks start.
#include "core/config/init_from.h"

#include <gtest/gtest.h>

#include "tests/support/config_text.h"
#include "tests/support/errors.h"

namespace convoy {
namespace {

std::optional<InitFrom> read_with(const std::vector<std::string>& overrides) {
  return init_from(testing::read_config(testing::valid_config, overrides).model.options);
}

TEST(InitFromOption, AcceptsAPathOrAMap) {
  EXPECT_FALSE(read_with({}));
  const auto path = read_with({"model.init_from=runs/a@member1"});
  EXPECT_EQ(path->path, "runs/a@member1");
  EXPECT_TRUE(path->strict);
  const auto map =
      read_with({R"(model.init_from={path: w, strict: false, rename: {"^old\\.": new., "\\d+": "<\\0>"}})"});
  EXPECT_FALSE(map->strict);
  EXPECT_EQ(map->renamed("old.3.weight"), "new.<3>.weight");
  const auto changed = read_with({"model.init_from=w", "model.init_from.strict=false"});
  EXPECT_EQ(changed->path, "w");
  EXPECT_FALSE(changed->strict);
}

TEST(InitFromOption, NamesMistakesAtTheirKey) {
  const auto error = [](const std::string& value) {
    return testing::config_error(testing::valid_config, {"model.init_from=" + value});
  };
  EXPECT_TRUE(has(error("{strict: false}"), "init_from.path: is missing and required")) << error("{strict: false}");
  EXPECT_TRUE(has(error("{path: w, strikt: false}"), "did you mean strict?"));
  EXPECT_TRUE(has(error("[w]"), "init_from: must be a map, or its path"));
  const std::string pattern = error_of([] { read_with({"model.init_from={path: w, rename: {'(': x}}"}); });
  EXPECT_TRUE(has(pattern, "model.init_from.rename.(") && has(pattern, "no regular expression")) << pattern;
  const std::string group = error_of([] { read_with({R"(model.init_from={path: w, rename: {a: "\\1"}})"}); });
  EXPECT_TRUE(has(group, "does not fit the pattern")) << group;
}

TEST(InitFromOption, FindsAWrongPathBeforeTheStart) {
  const auto check = [](const std::string& path, const std::string& resume) {
    const Options model =
        testing::read_config(testing::valid_config, {"model.init_from=" + path, "train.resume=never"}).model.options;
    return error_of([&] { check_init_from(model, resume); });
  };
  EXPECT_TRUE(has(check("/nowhere/at/all", "never"), "model.init_from.path: ")) << check("/nowhere/at/all", "never");
  EXPECT_TRUE(has(check("/nowhere/at/all", "auto"), "does not exist"));
  EXPECT_TRUE(has(check("w", "runs/other"), "leave one of them out"));
}

}  // namespace
}  // namespace convoy
