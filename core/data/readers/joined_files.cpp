// Interactions of several files as one: ids are numbered by first appearance over the files in order.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <vector>

#include "core/base/error.h"
#include "core/data/readers/interactions_reader.h"
#include "core/data/readers/name_list.h"
#include "core/data/readers/table_reader.h"
#include "core/data/rows.h"

namespace convoy {
namespace {

// Names of all files by first appearance.
class JoinedNames {
 public:
  // Numbers of the file's names.
  std::vector<int32_t> add(const NameList& names) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < names.size(); ++i) {
      const auto [found, added] = numbers_.try_emplace(std::string(names[i]), int32_t(names_.size()));
      if (added) names_.push_back(found->first);
      result.push_back(found->second);
    }
    return result;
  }
  NameList list() const { return NameList(names_); }

 private:
  std::unordered_map<std::string, int32_t> numbers_;
  std::vector<std::string> names_;
};

at::Tensor numbered_ids(const at::Tensor& ids, const std::vector<int32_t>& numbers) {
  at::Tensor out = at::empty(ids.sizes(), at::kInt);
  const auto* from = ids.const_data_ptr<int32_t>();
  auto* to = out.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) to[i] = numbers[size_t(from[i])];
  return out;
}

at::Tensor joined_column(const std::vector<Interactions>& parts, const std::vector<std::string>& paths,
                         at::Tensor Interactions::*column, const char* what) {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i < parts.size(); ++i) {
    if ((parts[i].*column).defined() != (parts.front().*column).defined())
      throw Error(Failure::corrupt_data, paths[i], ": has ", (parts[i].*column).defined() ? "" : "no ", what, ", and ",
                  paths.front(), (parts.front().*column).defined() ? " has" : " has none",
                  "; give files of the same columns");
    if ((parts[i].*column).defined()) all.push_back(parts[i].*column);
  }
  return all.empty() ? at::Tensor() : at::cat(all);
}

// Words of all files for each context column, and each file's numbers for them.
void join_context_words(std::vector<Interactions>& parts) {
  const size_t columns = parts.front().context_words.size();
  if (columns > 0)
    for (Interactions& part : parts) part.context = part.context.clone();
  for (size_t column = 0; column < columns; ++column) {
    if (parts.front().context_words[column].empty()) continue;
    WordNumbers words;
    for (const Interactions& part : parts)
      for (const std::string& word : part.context_words[column]) words(word);
    words.sort();
    for (Interactions& part : parts) {
      std::vector<float> number;
      for (const std::string& word : part.context_words[column]) number.push_back(float(words(word)));
      float* value = part.context.mutable_data_ptr<float>() + column;
      for (int64_t row = 0; row < part.size(); ++row, value += part.contexts()) *value = number[size_t(*value)];
      part.context_words[column] = words.words();
    }
  }
}

// Joins the features that the data files contain: one row for each id.
void join_sources(const std::vector<Interactions>& parts, std::vector<Features> Interactions::*sources,
                  const std::string& entity, Interactions& all) {
  if ((parts.front().*sources).empty()) return;
  Features joined = (parts.front().*sources).front();
  JoinedNames names;
  std::vector<std::vector<int32_t>> numbers;
  for (const Interactions& part : parts) numbers.push_back(names.add((part.*sources).front().ids));
  joined.ids = names.list();
  const int64_t width = joined.values.size(1);
  joined.values = at::empty({joined.ids.size(), width}, at::kFloat);
  auto* to = joined.values.mutable_data_ptr<float>();
  std::vector<char> known(size_t(joined.ids.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const Features& source = (parts[i].*sources).front();
    const at::Tensor values = source.values.contiguous();
    for (size_t id = 0; id < numbers[i].size(); ++id) {
      const float* from = values.const_data_ptr<float>() + int64_t(id) * width;
      float* row = to + int64_t(numbers[i][id]) * width;
      if (known[size_t(numbers[i][id])] != 0 && std::memcmp(from, row, size_t(width) * sizeof(float)) != 0)
        throw Error(Failure::corrupt_data, source.path, ": ", entity, " '", source.ids[int64_t(id)],
                    "' has other values of ", join(source.names, ", "), " than in an earlier file; data.columns.",
                    entity, "_features takes one value per ", entity);
      std::copy_n(from, width, row);
      known[size_t(numbers[i][id])] = 1;
    }
  }
  (all.*sources).push_back(std::move(joined));
}

}  // namespace

Interactions joined_interactions(std::vector<Interactions> parts, const std::vector<std::string>& paths) {
  if (parts.size() == 1) return std::move(parts.front());
  int64_t rows = 0;
  for (const Interactions& part : parts) rows += part.size();
  if (rows > std::numeric_limits<int32_t>::max())
    throw Error(Failure::corrupt_data, paths.front(), " and ", paths.size() - 1, " more hold ", rows,
                " interactions; the maximum is 2147483647");
  Interactions all;
  JoinedNames users, items;
  for (Interactions& part : parts) {
    part.user = numbered_ids(part.user, users.add(part.user_names));
    part.item = numbered_ids(part.item, items.add(part.item_names));
  }
  join_context_words(parts);
  all.context_words = parts.front().context_words;
  all.user = joined_column(parts, paths, &Interactions::user, "users");
  all.item = joined_column(parts, paths, &Interactions::item, "items");
  all.time = joined_column(parts, paths, &Interactions::time, "times");
  all.context = joined_column(parts, paths, &Interactions::context, "context");
  all.weight = joined_column(parts, paths, &Interactions::weight, "weights");
  all.user_names = users.list();
  all.item_names = items.list();
  all.users = all.user_names.size();
  all.items = all.item_names.size();
  all.context_names = parts.front().context_names;
  join_sources(parts, &Interactions::item_sources, "item", all);
  join_sources(parts, &Interactions::user_sources, "user", all);
  std::vector<std::string> fingerprints;
  for (const Interactions& part : parts) fingerprints.push_back(part.fingerprint);
  all.fingerprint = combined_fingerprint(fingerprints);
  log_in_memory(str(paths.size(), " files from ", paths.front()),
                rows * 8 + int64_t(all.context.defined() ? all.context.nbytes() : 0),
                "interactions of several files are copied into one table; one file is mapped");
  return all;
}

// Tables of several files as one: classes, columns and words get common numbers.

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
