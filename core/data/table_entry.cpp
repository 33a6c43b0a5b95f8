// table: what its user can write.
#include "core/config/without_effect.h"
#include "core/describe.h"

namespace convoy {
namespace {

bool ends_in(const std::string& path, const std::string& end) {
  return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

// Keys that a file of this kind does not look at.
void check_form(const Options& options) {
  const std::string& path = options.text("path");
  const bool npy = ends_in(path, ".npy"), tensors = ends_in(path, ".safetensors");
  const auto refuse = [&](const Options& at, const char* key, const std::string& reason) {
    refuse_without_effect(at, key, reason, {options.mark("path")});
  };
  if (npy || tensors)
    for (const char* key : {"delimiter", "header"})
      refuse(options, key, "is for text such as .csv, and path has arrays; leave it out");
  if (!npy)
    refuse(options, "target_path",
           "is for .npy, which holds one array, and path is none; name the column or tensor by target");
  if (npy && !options.has("target_path"))
    options.fail("path", "is an .npy with the features only; name the .npy with the targets by target_path");
  if (!npy) return;
  for (const char* key : {"features", "target", "weight"})
    refuse(options, key,
           "names a column or tensor, which an .npy does not have; leave it out, or put the arrays into one "
           ".safetensors file");
}

void check(const Options& options) {
  const std::string& delimiter = options.text("delimiter");
  if (delimiter.size() != 1 && delimiter != "tab")
    options.fail("delimiter", "has to be one character, or the word tab");
  check_form(options);
  if (options.text("task") == "regression")
    refuse_without_effect(options, "classes",
                          "is for task: classification, and task is regression; leave one of them out",
                          {options.mark("task")});
  const Options evaluate = options.section("evaluate");
  if (evaluate.has("path"))
    refuse_without_effect(evaluate, "fraction", "and path both say which rows to evaluate on; leave one of them out",
                          {evaluate.mark("path")});
  else if (evaluate.has("target_path"))
    evaluate.fail("target_path", "has the targets of evaluate.path, which is not given; give both, or neither");
}

}  // namespace

Entry table_entry() {
  Entry entry;
  entry.name = "table";
  entry.help = "features and a target of one's own: CSV by declared columns, .npy or safetensors arrays, memory-mapped";
  entry.options = {
      describe::text("path", ".csv (or other text), .npy with the features, or .safetensors").must(),
      describe::text("target_path", ".npy with the targets").may_be_null(),
      describe::text("delimiter", "csv: between fields, one character, or the word tab", ","),
      describe::boolean("header", "csv: the first line names the columns, which are otherwise called 1, 2, …", true),
      describe::list("features", "columns of numbers, all others by default; or the one tensor's name (features)",
                     describe::text("", "a column")),
      describe::text("target", "the column or tensor to predict", "target"),
      describe::text("weight", "the column or tensor with sample weights").may_be_null(),
      describe::choice("task", "classes (words or numbers), or numbers", {"classification", "regression"},
                       "classification"),
      describe::integer("classes", "where there are more than the data shows")
          .at_least(1)
          .at_most(1 << 30)
          .may_be_null(),
      describe::section("evaluate", "the rows to evaluate on",
                        {describe::real("fraction", "of the rows, drawn by the seed", 0.1).at_least(0).at_most(0.99),
                         describe::text("path", "a file of their own instead").may_be_null(),
                         describe::text("target_path", ".npy with its targets").may_be_null()}),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
