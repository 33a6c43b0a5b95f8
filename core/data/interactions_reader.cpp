// One pass over the text; ids become dense numbers in order of appearance.
#include "core/data/interactions_reader.h"

#define XXH_INLINE_ALL
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "core/data/delimited.h"
#include "core/data/header.h"
#include "core/error.h"

namespace convoy {
namespace {

struct TokenHash {
  size_t operator()(std::string_view token) const { return XXH3_64bits(token.data(), token.size()); }
};

// From the words of the file to 0, 1, 2, …
class Numbering {
 public:
  int32_t operator()(std::string_view token) {
    return numbers_.try_emplace(token, int32_t(numbers_.size())).first->second;
  }
  int64_t size() const { return int64_t(numbers_.size()); }

 private:
  std::unordered_map<std::string_view, int32_t, TokenHash> numbers_;
};

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType dtype) {
  auto tensor = at::empty(shape, dtype);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}

Columns columns_of(const Interactions& all) {
  Columns columns{{"user", all.user}, {"item", all.item}, {"counts", at::empty({2}, at::kLong)}};
  columns["counts"].mutable_data_ptr<int64_t>()[0] = all.users;
  columns["counts"].mutable_data_ptr<int64_t>()[1] = all.items;
  if (all.time.defined()) columns["time"] = all.time;
  if (all.context.defined()) columns["context"] = all.context;
  if (all.weight.defined()) columns["weight"] = all.weight;
  return columns;
}

Interactions interactions_of(const Columns& columns) {
  const auto column = [&](const char* name) {
    const auto found = columns.find(name);
    return found == columns.end() ? at::Tensor() : found->second;
  };
  Interactions all;
  all.user = column("user");
  all.item = column("item");
  all.time = column("time");
  all.context = column("context");
  all.weight = column("weight");
  all.users = column("counts").const_data_ptr<int64_t>()[0];
  all.items = column("counts").const_data_ptr<int64_t>()[1];
  return all;
}

char delimiter_from(const Options& options, bool typed) {
  if (!options.has("delimiter")) return typed ? '\t' : ',';
  const std::string& text = options.text("delimiter");
  if (text == "tab" || text == "\\t") return '\t';
  if (text.size() != 1) options.fail("delimiter", "has to be one character, or the word tab");
  return text[0];
}

}  // namespace

InteractionColumns InteractionColumns::from(const Options& options, const std::string& path) {
  const std::string& format = options.text("format");
  const bool inter = path.size() > 6 && path.compare(path.size() - 6, 6, ".inter") == 0;
  InteractionColumns columns;
  columns.typed_header = format == "inter" || (format == "auto" && inter);
  columns.delimiter = delimiter_from(options, columns.typed_header);
  columns.header = options.boolean("header");
  if (columns.typed_header && !columns.header) options.fail("header", "a typed header cannot be absent: format: csv");
  const auto names = options.section("columns");
  columns.user = names.text("user");
  columns.item = names.text("item");
  columns.time = names.has("time") ? names.text("time") : "";
  columns.context = names.texts("context");
  columns.weight = names.has("weight") ? names.text("weight") : "";
  return columns;
}

std::string InteractionColumns::described() const {
  Json all{{"typed", typed_header}, {"delimiter", std::string(1, delimiter)},
           {"header", header},      {"user", user},
           {"item", item},          {"time", time},
           {"context", context},    {"weight", weight}};
  return all.dump();
}

Interactions parse_interactions(const std::string& path, std::string_view text, const InteractionColumns& columns) {
  DelimitedReader reader(path, text, columns.delimiter);
  const Header header(reader, columns.typed_header, columns.header);
  const size_t user_column = header.token(columns.user, "data.columns.user");
  const size_t item_column = header.token(columns.item, "data.columns.item");
  const bool timed = !columns.time.empty() || header.has("timestamp");
  const size_t time_column =
      timed ? header.number(columns.time.empty() ? "timestamp" : columns.time, "data.columns.time") : 0;
  const bool weighted = !columns.weight.empty();
  const size_t weight_column = weighted ? header.number(columns.weight, "data.columns.weight") : 0;
  std::vector<size_t> context_columns;
  for (const auto& name : columns.context) context_columns.push_back(header.number(name, "data.columns.context"));

  Numbering users, items;
  std::vector<int32_t> user, item;
  std::vector<double> time;
  std::vector<float> context, weight;
  const size_t guess = text.size() / 24;  // what a short row takes; vectors grow where rows are shorter still
  user.reserve(guess);
  item.reserve(guess);
  for (bool more = header.first_row_read() || reader.next(); more; more = reader.next()) {
    if (reader.field(user_column).empty()) reader.fail(user_column, "the user is missing");
    if (reader.field(item_column).empty()) reader.fail(item_column, "the item is missing");
    user.push_back(users(reader.field(user_column)));
    item.push_back(items(reader.field(item_column)));
    if (timed) time.push_back(reader.number(time_column));
    for (size_t column : context_columns) context.push_back(float(reader.number(column)));
    if (weighted) {
      weight.push_back(float(reader.number(weight_column)));
      if (weight.back() < 0) reader.fail(weight_column, "a weight is negative");
    }
  }
  const auto rows = int64_t(user.size());
  if (rows == 0) throw Error(Failure::corrupt_data, str(path, ": holds no interactions"));
  if (rows > std::numeric_limits<int32_t>::max())
    throw Error(Failure::corrupt_data, str(path, ": holds ", rows, " interactions; 2147483647 are the most"));

  Interactions all;
  all.users = users.size();
  all.items = items.size();
  all.user = tensor_of(user, {rows}, at::kInt);
  all.item = tensor_of(item, {rows}, at::kInt);
  if (timed) all.time = tensor_of(time, {rows}, at::kDouble);
  if (weighted) all.weight = tensor_of(weight, {rows}, at::kFloat);
  const auto width = int64_t(context_columns.size());
  if (width > 0) all.context = tensor_of(context, {rows, width}, at::kFloat);
  return all;
}

Interactions read_interactions(const std::string& path, const InteractionColumns& columns) {
  const MappedFile file(path);
  return interactions_of(cached_columns(file, "interactions " + columns.described(),
                                        [&] { return columns_of(parse_interactions(path, file.text(), columns)); }));
}

}  // namespace convoy
