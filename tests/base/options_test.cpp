#include "core/base/json.h"

#include <gtest/gtest.h>

#include <functional>

namespace convoy {
namespace {

Options example() {
  return Options(Json{{"flag", true},
                      {"count", 3},
                      {"rate", 0.5},
                      {"word", "hello"},
                      {"auto_count", "auto"},
                      {"empty", nullptr},
                      {"numbers", {1, 2}},
                      {"words", {"a", "b"}},
                      {"inner", {{"deep", {{"x", 1}}}, {"y", 2}}},
                      {"many", {{{"x", 1}}, {{"x", 2}}}}},
                 {{"", {"f", 1, 1}},
                  {"count", {"f", 2, 8}},
                  {"inner", {"f", 3, 8}},
                  {"inner.deep.x", {"f", 4, 9}},
                  {"many.1", {"f", 5, 3}},
                  {"many.1.x", {"f", 5, 6}},
                  {"innermost", {"f", 9, 9}}},
                 "model");
}

std::string message_of(const Options& options, const std::string& key) {
  try {
    options.fail(key, "no");
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Options, Getters) {
  const Options options = example();
  EXPECT_TRUE(options.boolean("flag"));
  EXPECT_EQ(options.integer("count"), 3);
  EXPECT_EQ(options.real("rate"), 0.5);
  EXPECT_EQ(options.real("count"), 3.0);
  EXPECT_EQ(options.text("word"), "hello");
  EXPECT_TRUE(options.is_auto("auto_count"));
  EXPECT_FALSE(options.is_auto("count"));
  EXPECT_FALSE(options.has("empty"));
  EXPECT_FALSE(options.has("unheard"));
  EXPECT_TRUE(options.has("count"));
  EXPECT_EQ(options.integers("numbers"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(options.reals("numbers"), (std::vector<double>{1, 2}));
  EXPECT_EQ(options.texts("words"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(options.texts("empty").empty());
  EXPECT_EQ(options.section("inner").section("deep").integer("x"), 1);
  EXPECT_EQ(options.sections("many").at(1).integer("x"), 2);
  EXPECT_TRUE(options.section("empty").json().empty());
}

TEST(Options, WrongUseIsToldAtTheComponent) {
  const Options options = example();
  const auto told = [&](const std::function<void()>& use) -> std::string {
    try {
      use();
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.kind(), Failure::config);
      return error.what();
    }
    return "nothing";
  };
  const std::string unheard = told([&] { options.integer("unheard"); });
  EXPECT_EQ(unheard.find("f:1:1: model: its code reads an option 'unheard'"), 0u) << unheard;
  EXPECT_NE(unheard.find("described are "), std::string::npos) << unheard;
  const std::string count = told([&] { options.text("count"); });
  EXPECT_EQ(count.find("f:2:8: model.count: is "), 0u) << count;
  EXPECT_NE(count.find("Options::text"), std::string::npos) << count;
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { options.integer("word"); }, [&] { options.integer("rate"); }, [&] { options.integers("words"); },
           [&] { options.section("count"); }, [&] { options.sections("count"); }, [&] { options.sections("words"); }})
    EXPECT_NE(told(use).find("which takes another type"), std::string::npos) << told(use);
  EXPECT_THROW(Options(Json::array()), Error);
}

TEST(Options, MarksLeadBackOrToTheParent) {
  const Options options = example();
  EXPECT_EQ(message_of(options, "count"), "f:2:8: model.count: no");
  EXPECT_EQ(message_of(options, "rate"), "f:1:1: model.rate: no");
  EXPECT_EQ(message_of(options, ""), "f:1:1: model: no");
  EXPECT_EQ(message_of(options.section("inner"), "y"), "f:3:8: model.inner.y: no");
  EXPECT_EQ(message_of(options.section("inner").section("deep"), "x"), "f:4:9: model.inner.deep.x: no");
  EXPECT_EQ(message_of(options, "inner.deep.x"), "f:4:9: model.inner.deep.x: no");
  EXPECT_EQ(message_of(options.sections("many")[1], "x"), "f:5:6: model.many.1.x: no");
  EXPECT_EQ(message_of(options.sections("many")[0], "x"), "f:1:1: model.many.0.x: no");
  EXPECT_EQ(message_of(Options(), "x"), "x: no");
}

}  // namespace
}  // namespace convoy
