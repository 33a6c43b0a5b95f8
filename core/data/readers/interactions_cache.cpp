// Interactions as columns of a cache.
#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/data/readers/interactions_reader.h"

namespace convoy {
namespace {

// Tensors of interactions, and their names in a cache.
struct NamedColumn {
  const char* name;
  at::Tensor Interactions::*tensor;
  bool by_row;  // has one element for each interaction
};
constexpr NamedColumn named_columns[] = {
    {"user", &Interactions::user, true},
    {"item", &Interactions::item, true},
    {"time", &Interactions::time, true},
    {"context", &Interactions::context, true},
    {"weight", &Interactions::weight, true},
    {"item_features", &Interactions::item_features, false},
    {"user_features", &Interactions::user_features, false},
    {"context_kinds", &Interactions::context_kinds, false},
};

}  // namespace

Columns columns_of(const Interactions& all) {
  Columns columns{{"counts", at::empty({2}, at::kLong)},
                  {"user_bytes", all.user_names.bytes()},
                  {"user_ends", all.user_names.ends()},
                  {"item_bytes", all.item_names.bytes()},
                  {"item_ends", all.item_names.ends()}};
  columns["counts"].mutable_data_ptr<int64_t>()[0] = all.users;
  columns["counts"].mutable_data_ptr<int64_t>()[1] = all.items;
  for (const NamedColumn& column : named_columns)
    if ((all.*column.tensor).defined()) columns[column.name] = all.*column.tensor;
  const auto has_words = [](const ColumnWords& words) { return !words.empty(); };
  if (std::any_of(all.context_words.begin(), all.context_words.end(), has_words)) add_words(columns, all.context_words);
  return columns;
}

// True if columns_of could have made these columns: names, dtypes and shapes are right, and all numbers are in range.
bool are_valid_columns(const Columns& columns, const InteractionColumns& how) {
  if (!has_column(columns, "user", at::kInt, {-1}) || !has_column(columns, "counts", at::kLong, {2})) return false;
  const int64_t rows = columns.at("user").numel();
  const int64_t users = columns.at("counts").const_data_ptr<int64_t>()[0];
  const int64_t items = columns.at("counts").const_data_ptr<int64_t>()[1];
  const auto contexts = int64_t(how.context.size());
  const bool whole =
      rows > 0 && has_column(columns, "item", at::kInt, {rows}) && has_column(columns, "user_bytes", at::kByte, {-1}) &&
      has_column(columns, "user_ends", at::kLong, {users}) && has_column(columns, "item_bytes", at::kByte, {-1}) &&
      has_column(columns, "item_ends", at::kLong, {items}) && (how.time.empty() || columns.count("time") == 1) &&
      (columns.count("time") == 0 || has_column(columns, "time", at::kDouble, {rows})) &&
      (how.weight.empty() ? columns.count("weight") == 0 : has_column(columns, "weight", at::kFloat, {rows})) &&
      (contexts == 0 ? columns.count("context") == 0 : has_column(columns, "context", at::kFloat, {rows, contexts}));
  const auto of_ids = [&](const char* name, int64_t ids, const std::vector<std::string>& named) {
    return named.empty() ? columns.count(name) == 0
                         : has_column(columns, name, at::kFloat, {ids, int64_t(named.size())});
  };
  if (!of_ids("item_features", items, how.item_features) || !of_ids("user_features", users, how.user_features))
    return false;
  constexpr auto kinds = int64_t(ContextKind::same_everywhere) + 1;
  if (contexts > 0 &&
      !(has_column(columns, "context_kinds", at::kByte, {contexts}) && all_below(columns.at("context_kinds"), kinds)))
    return false;
  const bool words = !how.prepare.categorical.empty();
  if (!whole || (words && contexts == 0)) return false;
  if (!are_valid_words(columns, words, words ? columns.at("context") : at::Tensor())) return false;
  if (!all_below(columns.at("user"), users) || !all_below(columns.at("item"), items)) return false;
  NameList(columns.at("user_bytes"), columns.at("user_ends"));
  NameList(columns.at("item_bytes"), columns.at("item_ends"));
  return true;
}

Interactions interactions_of(const Columns& columns) {
  Interactions all;
  for (const NamedColumn& column : named_columns)
    if (const auto found = columns.find(column.name); found != columns.end()) all.*column.tensor = found->second;
  all.context_words = words_of(columns, size_t(all.contexts()));
  all.users = columns.at("counts").const_data_ptr<int64_t>()[0];
  all.items = columns.at("counts").const_data_ptr<int64_t>()[1];
  all.user_names = NameList(columns.at("user_bytes"), columns.at("user_ends"));
  all.item_names = NameList(columns.at("item_bytes"), columns.at("item_ends"));
  return all;
}

Interactions row_range(const Interactions& all, int64_t begin, int64_t rows) {
  Interactions result;
  for (const NamedColumn& column : named_columns)
    if (column.by_row && (all.*column.tensor).defined())
      result.*column.tensor = (all.*column.tensor).narrow(0, begin, rows);
  return result;
}

}  // namespace convoy
