// Products of a data set's sizes, which may be beyond any memory though each size is not.
#include <algorithm>

#include "core/data/described_rows.h"
#include "core/error.h"

namespace convoy {
namespace {

double product(const std::vector<int64_t>& sizes) {
  double all = 1;
  for (int64_t size : sizes) all *= double(size);
  return all;
}

void refuse_above(double most, const Options& options, const char* key, double elements, const char* what) {
  if (elements > most)
    options.fail(key, str("makes ", what, " of ", elements, " numbers; ", most, " are the most; take smaller sizes"));
}

double vector_sizes(const Options& options, bool classes) {
  const double width = product(options.integers("features"));
  refuse_above(most_row_elements, options, "features", width, "a row");
  const char* outputs = classes ? "classes" : "targets";
  refuse_above(most_elements, options, outputs, width * double(options.integer(outputs)),
               "a table of features for each of them");
  return width;
}

// One row: the positive, and what it is held against in training and evaluation.
double items_of_a_row(const Options& options, double items) {
  const double compared = options.text("ranking") == "full" ? items : double(options.integer("candidates"));
  return 1 + std::max(double(options.integer("negatives")), compared);
}

double interaction_sizes(const Options& options) {
  const double rows = double(options.integer("rows")) + double(options.integer("users"));
  if (rows > 2147483647)
    options.fail("rows", str("and users together are ", rows, "; 2147483647 are the most; take fewer"));
  const auto context = double(options.integer("context"));
  refuse_above(most_elements, options, "context", rows * context, "columns");
  const double width = items_of_a_row(options, double(options.integer("items")));
  return width + context;
}

double synthetic_sizes(const Options& options) {
  const std::string& kind = options.text("kind");
  if (kind == "interactions") return interaction_sizes(options);
  if (kind != "tokens") return vector_sizes(options, kind == "classification");
  const auto length = double(options.integer("length"));
  const double rows = double(options.integer("rows")) + double(options.integer("evaluate_rows"));
  refuse_above(most_tokens, options, "length", rows * length, "data");
  return length;
}

}  // namespace

double check_data_sizes(const std::string& name, const Options& options) {
  if (name == "synthetic") return synthetic_sizes(options);
  if (name == "interactions") return items_of_a_row(options, 1);
  const DescribedRows rows = described_rows(name, options);
  double width = 1;
  for (const auto& [field, described] : rows.fields)
    if (described.shape) width = std::max(width, product(*described.shape));
  return width;
}

}  // namespace convoy
