// Files that are refused before or while YAML is parsed: bytes, structure, size.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/config/reader.h"
#include "tests/support/config_text.h"

namespace convoy {
namespace {

using testing::config_error;
using testing::config_with;
using testing::valid_config;

std::string file_error(const std::string& path) {
  try {
    read_run_tree(read_yaml_file(path, {}), testing::small_catalogues());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(ConfigSource, MissingFile) {
  EXPECT_EQ(file_error("/nowhere/x.yaml"), "/nowhere/x.yaml: no such file; name a YAML file that describes the run");
}

TEST(ConfigSource, Directory) {
  EXPECT_EQ(file_error("/tmp"), "/tmp: is a directory; name a YAML file that describes the run");
}

TEST(ConfigSource, AProgramInPlaceOfAFile) {
  const std::string self = "/proc/self/exe";
  EXPECT_EQ(file_error(self), self + ": is a program and no YAML file; type convoy run --ranks 2 -- " + self);
}

TEST(ConfigSource, PipeAndDevice) {
  const std::string pipe = "/tmp/convoy-pipe-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(file_error(pipe), pipe + ": is not a regular file");
  unlink(pipe.c_str());
  EXPECT_EQ(file_error("/dev/zero"), "/dev/zero: is not a regular file");
}

TEST(ConfigSource, Empty) {
  EXPECT_EQ(config_error(""), "run.yaml:1:1: is empty; it must describe a run");
  EXPECT_EQ(config_error("# only a comment\n\n"), "run.yaml:1:1: is empty; it must describe a run");
}

TEST(ConfigSource, TopLevelIsNoMap) {
  const std::string reason = "the top level must be a map of keys, such as name: my-run";
  EXPECT_EQ(config_error("- a\n- b\n"), "run.yaml:1:1: " + reason);
  EXPECT_EQ(config_error("# c\n  just text\n"), "run.yaml:2:3: " + reason);
  EXPECT_EQ(config_error("~\n"), "run.yaml:1:1: " + reason);
  EXPECT_EQ(config_error("---\n"), "run.yaml:2:1: " + reason);
}

TEST(ConfigSource, LargerThanOneMebibyte) {
  const std::string comment = "#" + std::string(1023, 'x') + "\n";
  EXPECT_EQ(config_error(repeated(comment, 1024) + valid_config),
            "run.yaml: is larger than 1 MiB, the limit of a configuration");
  EXPECT_EQ(config_error(repeated(comment, 1000) + valid_config), "no error");
}

TEST(ConfigSource, BadUtf8) {
  EXPECT_EQ(config_error("name: caf\xe9\n"), "run.yaml:1:10: is not valid UTF-8; save it as UTF-8");
  EXPECT_EQ(config_error("name: é\xc0\xaf\n"), "run.yaml:1:8: is not valid UTF-8; save it as UTF-8");
  EXPECT_EQ(config_error("name: \xed\xa0\x80\n"), "run.yaml:1:7: is not valid UTF-8; save it as UTF-8");
  EXPECT_EQ(config_error("name: \xf4\x90\x80\x80\n"), "run.yaml:1:7: is not valid UTF-8; save it as UTF-8");
  EXPECT_EQ(config_error("name: \xe2\x82"), "run.yaml:1:7: is not valid UTF-8; save it as UTF-8");
}

TEST(ConfigSource, Utf16AndByteOrderMarks) {
  EXPECT_EQ(config_error("\xff\xfen\0a\0"), "run.yaml:1:1: is UTF-16; save it as UTF-8");
  EXPECT_EQ(config_error(std::string("\xfe\xff\0n", 4)), "run.yaml:1:1: is UTF-16; save it as UTF-8");
  EXPECT_EQ(config_error(std::string("n\0a\0m\0e\0", 8)), "run.yaml:1:1: is UTF-16; save it as UTF-8");
  EXPECT_EQ(config_error(std::string("\xef\xbb\xbf") + valid_config),
            "run.yaml:1:1: starts with a byte order mark; save it as UTF-8 without one");
}

TEST(ConfigSource, NulAndControlCharacters) {
  EXPECT_EQ(config_error(std::string("name: a\0b\n", 10)),
            "run.yaml:1:8: holds a NUL byte; a configuration is plain text");
  EXPECT_EQ(config_error("name: a\x1b[31m\n"),
            "run.yaml:1:8: holds a control character; write it as an escape in double quotes");
  EXPECT_EQ(config_error("name: a\rmodel: b\n"),
            "run.yaml:1:8: holds a control character; write it as an escape in double quotes");
}

TEST(ConfigSource, Tabs) {
  EXPECT_EQ(config_error(config_with("  lr:", "\tlr:")), "run.yaml:6:1: indents with a tab; use spaces");
  EXPECT_EQ(config_error(config_with("  lr:", "  \tlr:")), "run.yaml:6:3: indents with a tab; use spaces");
  EXPECT_EQ(config_error(config_with("name: try", "name: try\t# fine")), "no error");
}

TEST(ConfigSource, WindowsLineEnds) {
  std::string text;
  for (const char* c = valid_config; *c != 0; ++c) text += *c == '\n' ? "\r\n" : std::string(1, *c);
  EXPECT_EQ(config_error(text), "no error");
}

TEST(ConfigSource, DuplicateKeys) {
  EXPECT_EQ(config_error(config_with("data:", "name: again\ndata:")),
            "run.yaml:3:1: name: written twice; first on line 1");
  EXPECT_EQ(config_error(config_with("rows: 1000", "rows: 1000, \"rows\": 5")),
            "run.yaml:3:32: data.rows: written twice; first on line 3");
}

TEST(ConfigSource, Tags) {
  const std::string reason = "tags (!…) have no meaning here; leave it out";
  EXPECT_EQ(config_error(config_with("epochs: 3", "epochs: !!int 3")), "run.yaml:7:17: train.epochs: " + reason);
  EXPECT_EQ(config_error(config_with("epochs: 3", "epochs: ! 3")), "run.yaml:7:17: train.epochs: " + reason);
  EXPECT_EQ(config_error(config_with("name: try", "name: !<?> try")), "run.yaml:1:7: name: " + reason);
  EXPECT_EQ(config_error(config_with("{epochs", "!mine {epochs")), "run.yaml:7:8: train: " + reason);
  EXPECT_EQ(config_error(config_with("[32, 16]", "&a !!seq [32, 16]")), "run.yaml:2:38: model.layers: " + reason);
  EXPECT_EQ(config_error(config_with("name: try", "name: &a ! try")), "run.yaml:1:7: name: " + reason);
}

TEST(ConfigSource, MergeKeys) {
  EXPECT_EQ(config_error(config_with("{epochs: 3,", "{<<: {epochs: 3},")),
            "run.yaml:7:9: train: merge keys (<<) are not supported; write the keys out");
}

TEST(ConfigSource, RefusesKeysThatAreNotText) {
  EXPECT_EQ(config_error("? [a, b]\n: c\n"),
            "run.yaml:1:3: a key must be plain text, not a list or map; or is a bracket left open?");
  EXPECT_EQ(config_error("~: c\n"), "run.yaml:1:1: a key must be plain text");
}

TEST(ConfigSource, SecondDocument) {
  const std::string reason = "text after the end of the document; a configuration is one YAML document";
  EXPECT_EQ(config_error(std::string(valid_config) + "---\nname: b\n"), "run.yaml:9:1: " + reason);
  EXPECT_EQ(config_error(std::string(valid_config) + "...\nname: b\n"), "run.yaml:10:1: " + reason);
  EXPECT_EQ(config_error("{name: a} b\n"), "run.yaml:1:11: " + reason);
  EXPECT_EQ(config_error("---\n" + std::string(valid_config) + "...\n"), "no error");
}

TEST(ConfigSource, BrokenYaml) {
  EXPECT_EQ(config_error("name: [a, b\n"), "run.yaml:2:1: not valid YAML: end of sequence flow not found");
  EXPECT_EQ(config_error("name: a: b\n"), "run.yaml:1:8: not valid YAML: illegal map value");
  EXPECT_EQ(config_error("name: *nobody\n"), "run.yaml:1:7: not valid YAML: the referenced anchor is not defined");
}

TEST(ConfigSource, AliasesWork) {
  const auto config = testing::read_config(config_with("layers: [32, 16]", "layers: &l [5, &six 6], extra: {a: *six}"));
  EXPECT_EQ(config.model.options.integers("layers"), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(config.model.options.section("extra").real("a"), 6);
}

TEST(ConfigSource, SelfAlias) {
  EXPECT_EQ(config_error(config_with("[32, 16]", "&a [32, *a]")),
            "run.yaml:2:46: model.layers.1: an alias inside its own anchor");
}

TEST(ConfigSource, AliasBombs) {
  std::string bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += str("a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) bomb += str(j == 0 ? "" : ", ", "*a", i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(config_error(bomb), "run.yaml:5:45: holds more than 100000 values, aliases expanded");
  // Few values, long text.
  const std::string wide = "a: &a " + std::string(400000, 'x') + "\nb: [*a" + repeated(", *a", 100000) + "]\n";
  EXPECT_NE(config_error(wide).find("holds more than 100000 values"), std::string::npos);
  // Deeper with each step.
  std::string deep = "a0: &a0 [x]\n";
  for (int i = 1; i < 70; ++i) deep += str("a", i, ": &a", i, " [*a", i - 1, "]\n");
  EXPECT_NE(config_error(deep).find("lists and maps are nested more than 64 deep"), std::string::npos);
}

TEST(ConfigSource, ColumnsAreCharacters) {
  const std::string line = "name: {" + repeated("\"é\": [ü, ö], ", 1) + "a: 1, ";
  EXPECT_EQ(config_error(line + "a: 2}\n"), "run.yaml:1:27: name.a: written twice; first on line 1");
  std::string wide = "a: [";
  for (int i = 0; i < 30000; ++i) wide += "é, ";
  EXPECT_EQ(config_error(wide + "!x y]\n"), "run.yaml:1:90005: a.30000: tags (!…) have no meaning here; leave it out");
}

TEST(ConfigSource, Nesting) {
  // The top level and 63 lists below it.
  const auto nested = [](int lists) { return "model: " + repeated("[", lists) + repeated("]", lists) + "\n"; };
  EXPECT_EQ(config_error(nested(64)), "run.yaml:1:71: lists and maps are nested more than 64 deep");
  EXPECT_EQ(config_error(nested(63)).find("nested"), std::string::npos);
  EXPECT_EQ(config_error(repeated("- ", 500000)), "run.yaml:1:129: lists and maps are nested more than 64 deep");
  // An unclosed structure: yaml-cpp reports it with other words.
  EXPECT_NE(config_error(repeated("[", 500000)).find("is a bracket left open?"), std::string::npos);
  EXPECT_NE(config_error(repeated("{a: ", 200000)), "no error");
}

}  // namespace
}  // namespace convoy
