// `convoy list` and the reference page, over the real catalogues; the catalogues match their descriptions.
#include "launch/cli/commands.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/config/option_reader.h"
#include "core/config/reader.h"
#include "launch/farm/config/farm.h"
#include "launch/prepare/describe.h"
#include "tests/support/errors.h"

namespace convoy {
namespace {

std::string listed(const ListRequest& request) {
  std::ostringstream out;
  list_catalogues(all_catalogues(), request, out);
  return out.str();
}

std::string list_error(const ListRequest& request) {
  try {
    return listed(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Failure::command_line);
    return error.what();
  }
}

TEST(Help, OfRunComesFromTheCatalogues) {
  const std::string text = configuration_help(all_catalogues());
  for (const Option& option : run_options()) {
    EXPECT_TRUE(has(text, "  " + option.name + " ")) << option.name;
    EXPECT_TRUE(has(text, option.help)) << option.name;
  }
  for (const auto& [kind, entries] : all_catalogues().kinds)
    for (const Entry& entry : entries) EXPECT_TRUE(has(text, entry.name)) << kind << " " << entry.name;
  EXPECT_TRUE(has(text, "convoy list config"));
}

TEST(List, NamesEverything) {
  const std::string text = listed({});
  for (const auto& [kind, entries] : all_catalogues().kinds) {
    EXPECT_TRUE(has(text, kind + "\n"));
    for (const Entry& entry : entries) EXPECT_TRUE(has(text, "  " + entry.name + " ")) << kind << " " << entry.name;
  }
}

TEST(List, PrintsOneEntry) {
  const std::string text = listed({"optimizer", "sgd"});
  EXPECT_EQ(text.substr(0, 4), "sgd:");
  EXPECT_TRUE(has(text, "momentum"));
  EXPECT_FALSE(has(text, "adam:"));
}

TEST(List, EntriesShowTheOptionsOfTheirKind) { EXPECT_TRUE(has(listed({"data", "synthetic"}), "prefetch")); }

TEST(List, PrintsTheKeysOfTheFile) {
  const std::string text = listed({"config", ""});
  EXPECT_TRUE(has(text, "heartbeat"));
  EXPECT_TRUE(has(text, "(duration, above 0, at most 2592000, in seconds, default 60)"));
}

TEST(List, PluralsNameTheKind) {
  for (const auto& [plural, kind] : std::vector<std::pair<std::string, std::string>>{{"strategies", "strategy"},
                                                                                     {"models", "model"},
                                                                                     {"losses", "loss"},
                                                                                     {"datasets", "data"},
                                                                                     {"optimizers", "optimizer"},
                                                                                     {"schedules", "schedule"},
                                                                                     {"transforms", "transform"},
                                                                                     {"backends", "backend"},
                                                                                     {"configs", "config"}})
    EXPECT_EQ(listed({plural, ""}), listed({kind, ""})) << plural;
  EXPECT_EQ(listed({"optimizers", "sgd"}), listed({"optimizer", "sgd"}));
}

TEST(List, UnknownWords) {
  EXPECT_EQ(list_error({"optimzer", ""}), "convoy list: unknown kind 'optimzer'; did you mean optimizer?");
  EXPECT_EQ(list_error({"optimizer", "adm"}), "convoy list: unknown optimizer 'adm'; did you mean adam?");
}

TEST(List, ReferencePageHoldsEveryOption) {
  const std::string page = listed({"", "", true});
  EXPECT_TRUE(has(page,
                  "| `train.batch.global` | integer, at least 1, at most 1000000000 (rows) |  | rows of the global "
                  "batch, over all ranks |"));
  for (const auto& [kind, entries] : all_catalogues().kinds) {
    for (const Entry& entry : entries) {
      EXPECT_TRUE(has(page, "### " + kind + ": " + entry.name + "\n"));
      for (const Option& option : entry.options) EXPECT_TRUE(has(page, "| `" + option.name + "` |")) << option.name;
    }
  }
  EXPECT_EQ(page.find("\n\n\n"), std::string::npos);
}

// The top-level keys of a YAML text, each with its lines.
std::map<std::string, std::string> keys_of(const std::string& yaml) {
  std::map<std::string, std::string> keys;
  std::istringstream lines(yaml);
  std::string line, key;
  while (std::getline(lines, line)) {
    if (line[0] != ' ') key = line.substr(0, line.find(':'));
    keys[key] += line + "\n";
  }
  return keys;
}

TEST(List, ExamplesOfTheReferencePageAreValid) {
  char pattern[] = "/tmp/convoy-examples-XXXXXX";
  const std::string folder = mkdtemp(pattern);
  const Catalogues all = all_catalogues();
  for (const auto& [section, example] : reference_examples()) {
    std::map<std::string, std::string> keys = keys_of(reference_examples().at("file"));
    if (section != "file") keys.erase("launch");
    for (const auto& [key, text] : keys_of(example)) keys[key] = text;
    std::ofstream file(folder + "/run.yaml");
    for (const auto& [key, text] : keys) file << text;
    file.close();
    RunArguments arguments;
    arguments.config = folder + "/run.yaml";
    try {
      const Node tree = read_yaml_file(arguments.config, {});
      if (const auto farm = read_farm(tree, arguments, {}, {}))
        refuse_all(farm->mistakes);
      else
        read_run_tree(tree, all);
    } catch (const Error& error) {
      ADD_FAILURE() << section << ": " << error.what();
    }
    const size_t colon = section.find(": ");
    if (colon == std::string::npos) continue;
    const std::string kind = section.substr(0, colon), name = section.substr(colon + 2);
    EXPECT_NE(all.find(kind, name), nullptr) << section;
    EXPECT_TRUE(has(example, name)) << section;
  }
  std::filesystem::remove_all(folder);
}

TEST(List, EverySectionOfTheReferencePageHasAnExample) {
  for (const Option& option : run_options())
    if (option.type == OptionType::section) {
      EXPECT_EQ(reference_examples().count(option.name), 1u) << option.name;
    }
  for (const auto& [kind, entries] : all_catalogues().kinds)
    EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [kind = kind](const Entry& entry) {
      return reference_examples().count(kind + ": " + entry.name) == 1;
    })) << kind;
}

TEST(List, ReferencePagePrintsASharedOptionOnce) {
  const std::string page = listed({"", "", true});
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("| `clip_norm` |"), 1);
  EXPECT_EQ(count("| `recompute` |"), 1);
  EXPECT_EQ(count("| `sync.compress` |"), 1);
  EXPECT_EQ(count("### strategy: shared options\n"), 1);
  EXPECT_EQ(count("anything"), 0);
}

// An option's description, its help and its default, and those of all below it.
void check_option(const Option& option, const std::string& path, OptionReader& reader) {
  EXPECT_FALSE(option.help.empty()) << path;
  EXPECT_EQ(option.help.find('\n'), std::string::npos) << path;
  EXPECT_FALSE(option.required && !option.fallback.json().is_null()) << path << " is required and has a default";
  EXPECT_EQ(option.type == OptionType::choice, !option.choices.empty()) << path;
  if (!option.required && !option.fallback.json().is_null()) {
    EXPECT_NO_THROW(reader.read_fields({option}, map_node({}), "")) << path;
  }
  const bool items = option.type == OptionType::list || option.type == OptionType::map;
  if (items) {
    EXPECT_EQ(option.options.size(), 1u) << path;
  }
  std::set<std::string> names;
  for (const Option& inner : option.options) {
    if (!items) {
      EXPECT_TRUE(names.insert(inner.name).second) << path << "." << inner.name << " twice";
    }
    check_option(inner, path + "." + inner.name, reader);
  }
}

TEST(Catalogues, DefaultsPassTheirOwnChecks) {
  const Catalogues all = all_catalogues();
  OptionReader reader(all, {});
  for (const auto& [kind, entries] : all.kinds) {
    std::set<std::string> names;
    for (const Entry& entry : entries) {
      EXPECT_TRUE(names.insert(entry.name).second) << kind << " " << entry.name << " twice";
      EXPECT_FALSE(entry.help.empty()) << kind << " " << entry.name;
      std::set<std::string> keys;
      for (const Option& option : common_options(kind)) keys.insert(option.name);
      for (const Option& option : entry.options) {
        EXPECT_TRUE(keys.insert(option.name).second) << kind << " " << entry.name << "." << option.name << " twice";
        EXPECT_NE(option.name, "name") << kind << " " << entry.name << ": that is the component's own";
        check_option(option, kind + " " + entry.name + "." + option.name, reader);
      }
    }
  }
  for (const Option& option : run_options()) {
    if (option.name != "name") check_option(option, option.name, reader);
  }
}

}  // namespace
}  // namespace convoy
