// Tables of several files as one: classes, columns and words get common numbers.
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/data/readers/name_list.h"
#include "core/data/readers/table_reader.h"
#include "core/data/rows.h"

namespace convoy {
namespace {

// Numbers of `names` in `known`. `where` ends the message about a name that is not there.
std::vector<int64_t> numbers_among(const std::vector<std::string>& names, const std::vector<std::string>& known,
                                   const std::string& path, const std::string& what, const char* where) {
  const NameList list(known);
  std::vector<int64_t> found = NameNumbers(list).find_all(NameList(names));
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] >= 0) continue;
    const std::vector<std::string> shown(known.begin(),
                                         known.begin() + std::min<std::ptrdiff_t>(20, known.end() - known.begin()));
    throw Error(Failure::corrupt_data, path, ": ", what, " '", names[i], "' ", where, join(shown, ", "),
                known.size() > shown.size() ? str(" and ", known.size() - shown.size(), " more") : std::string());
  }
  return found;
}

// Brings the columns into the order of `columns`.
void number_as_columns(TableData& data, const std::vector<std::string>& columns, const std::string& path) {
  if (data.columns.empty() || columns.empty() || data.columns == columns) return;
  const std::vector<int64_t> order =
      numbers_among(columns, data.columns, path, "column", "of the training data is not among ");
  data.features = data.features.index_select(1, at::tensor(order));
  std::vector<ColumnWords> words;
  for (int64_t column : order)
    if (!data.words.empty()) words.push_back(data.words[size_t(column)]);
  data.words = words;
  data.columns = columns;
}

void number_words(TableData& data, const std::vector<ColumnWords>& words, const std::string& path) {
  if (data.words == words) return;
  CONVOY_CHECK(data.words.size() == words.size(), "words of other columns");
  data.features = data.features.clone();
  auto* features = data.features.mutable_data_ptr<float>();
  for (size_t column = 0; column < words.size(); ++column) {
    if (data.words[column] == words[column]) continue;
    const std::vector<int64_t> number =
        numbers_among(data.words[column], words[column], path, str("category of column '", data.columns[column], "'"),
                      "does not occur in the training data, which has ");
    for (int64_t row = 0; row < data.rows(); ++row) {
      float& value = features[row * int64_t(words.size()) + int64_t(column)];
      value = float(number[size_t(value)]);
    }
  }
  data.words = words;
}

// Adds the names that `more` has in addition, and sorts them as those of one file.
void unite(std::vector<std::string>& names, const std::vector<std::string>& more) {
  if (names == more) return;
  WordNumbers all;
  for (const std::string& name : names) all(name);
  for (const std::string& name : more) all(name);
  all.sort();
  names = all.words();
}

}  // namespace

void number_as(TableData& data, const TableNames& names, const std::string& path) {
  if (data.labels.empty() != names.labels.empty())
    throw Error(Failure::corrupt_data, path, ": has classes by ", names.labels.empty() ? "name" : "number",
                ", and the training data by ", names.labels.empty() ? "number" : "name");
  if (data.labels != names.labels) {
    const std::vector<int64_t> code =
        numbers_among(data.labels, names.labels, path, "class", "does not occur in the training data, which has ");
    data.target = data.target.clone();
    auto* target = data.target.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < data.rows(); ++row) target[row] = code[size_t(target[row])];
    data.labels = names.labels;
  }
  number_as_columns(data, names.columns, path);
  number_words(data, names.words, path);
}

TableData joined_tables(std::vector<TableData> parts, const std::vector<std::string>& paths) {
  if (parts.size() == 1) return std::move(parts.front());
  TableNames names = parts.front();
  for (size_t i = 1; i < parts.size(); ++i) {
    number_as_columns(parts[i], names.columns, paths[i]);
    unite(names.labels, parts[i].labels);
    for (size_t column = 0; column < names.words.size(); ++column) unite(names.words[column], parts[i].words[column]);
  }
  TableData all;
  static_cast<TableNames&>(all) = names;
  std::vector<at::Tensor> features, targets, weights;
  std::vector<std::string> fingerprints;
  for (size_t i = 0; i < parts.size(); ++i) {
    TableData& part = parts[i];
    number_as(part, names, paths[i]);
    if (part.features.sizes().slice(1) != parts.front().features.sizes().slice(1) ||
        part.target.sizes().slice(1) != parts.front().target.sizes().slice(1))
      throw Error(Failure::corrupt_data, paths[i], ": rows of shape ", part.features.sizes().slice(1),
                  " do not fit those of ", paths.front(), ", ", parts.front().features.sizes().slice(1));
    features.push_back(part.features);
    targets.push_back(part.target);
    if (part.weight.defined()) weights.push_back(part.weight);
    if (!part.fingerprint.empty()) fingerprints.push_back(part.fingerprint);
    all.sources.insert(all.sources.end(), part.sources.begin(), part.sources.end());
  }
  all.features = at::cat(features);
  all.target = at::cat(targets);
  if (!weights.empty()) all.weight = at::cat(weights);
  if (!fingerprints.empty()) all.fingerprint = combined_fingerprint(fingerprints);
  log_in_memory(str(paths.size(), " files from ", paths.front()), int64_t(all.features.nbytes() + all.target.nbytes()),
                "rows of several files are copied into one table; one file is mapped");
  return all;
}

}  // namespace convoy
