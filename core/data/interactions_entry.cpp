// interactions: what its user can write.
#include <set>

#include "core/config/without_effect.h"
#include "core/data/interaction_options.h"
#include "core/describe.h"

namespace convoy {
namespace {

void check_columns(const Options& columns) {
  std::set<std::string> named;
  const std::vector<std::string> context = columns.texts("context");
  for (size_t index = 0; index < context.size(); ++index)
    if (!named.insert(context[index]).second)
      columns.fail(str("context.", index), str("is ", context[index], " for a second time; name each column once"));
}

void check(const Options& options) {
  check_ranking(options);
  check_columns(options.section("columns"));
  if (options.text("holdout") != "none") return;
  for (const char* key : {"ranking", "candidates", "evaluate"})
    refuse_without_effect(options, key,
                          "is for the evaluation, and holdout: none keeps nothing for one; leave one of them out",
                          {options.mark("holdout")});
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
           describe::list("context", "numbers that go into the model", describe::text("", "a column")),
           describe::text("weight", "of the sample, a number").may_be_null()}),
      describe::choice("holdout", "which interaction of each user is kept for evaluation", {"latest", "random", "none"},
                       "latest"),
  };
  for (auto& option : ranking_options()) entry.options.push_back(std::move(option));
  entry.check = check;
  return entry;
}

}  // namespace convoy
