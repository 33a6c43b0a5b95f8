// interactions: what its user can write.
#include <set>

#include "core/config/without_effect.h"
#include "core/data/interaction_options.h"
#include "core/describe.h"

namespace convoy {
namespace {

constexpr const char* number_lists[] = {"context", "item_features", "user_features"};

void check_columns(const Options& columns) {
  std::set<std::string> named;
  for (const char* list : number_lists) {
    const std::vector<std::string> names = columns.texts(list);
    for (size_t index = 0; index < names.size(); ++index)
      if (!named.insert(names[index]).second)
        columns.fail(str(list, ".", index), str("is ", names[index], " for a second time; name each column once"));
  }
}

void check_features(const Options& features) {
  std::set<std::string> named;
  const std::vector<std::string> columns = features.texts("columns");
  for (size_t index = 0; index < columns.size(); ++index)
    if (!named.insert(columns[index]).second)
      features.fail(str("columns.", index), str("is ", columns[index], " for a second time; name each column once"));
}

void check(const Options& options) {
  check_ranking(options);
  check_columns(options.section("columns"));
  for (const char* features : {"item_features", "user_features"})
    if (options.has(features)) check_features(options.section(features));
  if (options.text("holdout") != "none") return;
  for (const char* key : {"ranking", "candidates", "evaluate"})
    refuse_without_effect(options, key,
                          "is for the evaluation, and holdout: none keeps nothing for one; leave one of them out",
                          {options.mark("holdout")});
}

// Null by default, so that a configuration without it is one of before there were features.
Option features_option(const std::string& thing) {
  const auto help = [&](const char* text) { return str(text, thing); };
  return describe::section(
             thing + "_features", help("a file of numbers that describe each "),
             {describe::text("path", help("the file, with a line per ")).must(),
              describe::choice("format", "auto: inter for files that end in .item, .user or .inter, csv for all others",
                               {"auto", "inter", "csv"}, "auto"),
              describe::text(
                  "delimiter",
                  "between fields: one character, or the word tab; by default a tab for inter, a comma for csv")
                  .may_be_null(),
              describe::boolean("header", "csv: the first line names the columns, which are otherwise called 1, 2, …",
                                true),
              describe::text("id", str("its column of ids; by default the name of columns.", thing)).may_be_null(),
              describe::list("columns", "numbers that go into the model; by default all columns but the ids",
                             describe::text("", "a column"))})
      .may_be_null();
}

}  // namespace

Entry interactions_entry() {
  Entry entry;
  entry.name = "interactions";
  entry.help = "who took what, from delimited text: positives, drawn negatives, ranking of a held-out item";
  entry.options = {
      describe::text("path", "the file: .inter with a typed header, or CSV with declared columns").must(),
      describe::choice("format", "auto: inter for files that end so, csv for all others", {"auto", "inter", "csv"},
                       "auto"),
      describe::text("delimiter",
                     "between fields: one character, or the word tab; by default a tab for inter, a comma for csv")
          .may_be_null(),
      describe::boolean("header", "csv: the first line names the columns, which are otherwise called 1, 2, …", true),
      describe::section(
          "columns", "which column is what",
          {describe::text("user", "who", "user_id"), describe::text("item", "what", "item_id"),
           describe::text("time", "when, a number; by default timestamp where the file has it").may_be_null(),
           describe::list("context",
                          "numbers that describe the interaction, such as the hour; drawn negatives share them",
                          describe::text("", "a column")),
           describe::list("item_features", "numbers that describe the item; each drawn item has its own",
                          describe::text("", "a column with one value per item")),
           describe::list("user_features", "numbers that describe the user",
                          describe::text("", "a column with one value per user")),
           describe::text("weight", "of the sample, a number").may_be_null()}),
      features_option("item"),
      features_option("user"),
      describe::choice("holdout", "which interaction of each user is kept for evaluation", {"latest", "random", "none"},
                       "latest"),
  };
  for (auto& option : ranking_options()) entry.options.push_back(std::move(option));
  entry.check = check;
  return entry;
}

}  // namespace convoy
