// table: what its user can write.
#include "core/describe.h"

namespace convoy {

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
      describe::integer("classes", "where there are more than the data shows").at_least(1).may_be_null(),
      describe::section("evaluate", "the rows to evaluate on",
                        {describe::real("fraction", "of the rows, drawn by the seed", 0.1).at_least(0).at_most(0.99),
                         describe::text("path", "a file of their own instead").may_be_null(),
                         describe::text("target_path", ".npy with its targets").may_be_null()}),
  };
  return entry;
}

}  // namespace convoy
