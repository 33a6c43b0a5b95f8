// Columns of numbers and a target from CSV, by way of the cache.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <sstream>

#include "core/data/column_cache.h"
#include "core/data/delimited.h"
#include "core/data/header.h"
#include "core/data/table.h"
#include "core/error.h"

namespace convoy {
namespace {

bool is_number(const std::string& text, double& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

// Names of classes in order: by value where all are numbers, else by text.
std::vector<std::string> sorted_labels(const std::map<std::string, int64_t>& seen) {
  std::vector<std::pair<double, std::string>> numbered;
  bool numbers = true;
  for (const auto& entry : seen) {
    double value = 0;
    numbers = numbers && is_number(entry.first, value);
    numbered.emplace_back(value, entry.first);
  }
  if (!numbers) {
    for (auto& entry : numbered) entry.first = 0;
  }
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> labels;
  for (auto& entry : numbered) labels.push_back(entry.second);
  return labels;
}

at::Tensor bytes_of(const std::string& text) {
  auto tensor = at::empty({int64_t(text.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  return tensor;
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType dtype) {
  auto tensor = at::empty(shape, dtype);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}

Columns parse(const MappedFile& file, const TableOptions& options) {
  DelimitedReader reader(file.path(), file.text(), options.delimiter);
  const Header header(reader, false, options.header);
  const size_t target_column = header.number(options.target, "data.target");
  const bool weighted = !options.weight.empty();
  const size_t weight_column = weighted ? header.number(options.weight, "data.weight") : 0;
  std::vector<size_t> feature_columns;
  for (const auto& name : options.features) feature_columns.push_back(header.number(name, "data.features"));
  for (size_t column = 0; options.features.empty() && column < reader.columns(); ++column) {
    if (column != target_column && !(weighted && column == weight_column)) feature_columns.push_back(column);
  }

  std::vector<float> features, target, weight;
  std::vector<int64_t> code;
  std::map<std::string, int64_t> seen;  // class → number by appearance
  int64_t rows = 0;
  for (bool more = header.first_row_read() || reader.next(); more; more = reader.next(), ++rows) {
    for (size_t column : feature_columns) features.push_back(float(reader.number(column)));
    if (weighted) weight.push_back(float(reader.number(weight_column)));
    if (options.classification) {
      const std::string label(reader.field(target_column));
      if (label.empty()) reader.fail(target_column, "the class is missing");
      code.push_back(seen.try_emplace(label, int64_t(seen.size())).first->second);
    } else {
      target.push_back(float(reader.number(target_column)));
    }
  }

  std::vector<std::string> names;
  for (size_t column : feature_columns) names.push_back(header.names()[column]);
  Columns columns;
  columns["name_bytes"] = NameList(names).bytes();
  columns["name_ends"] = NameList(names).ends();
  columns["features"] = tensor_of(features, {rows, int64_t(feature_columns.size())}, at::kFloat);
  if (weighted) columns["weight"] = tensor_of(weight, {rows}, at::kFloat);
  if (options.classification) {
    const auto labels = sorted_labels(seen);
    std::vector<int64_t> place(labels.size());
    for (size_t i = 0; i < labels.size(); ++i) place[size_t(seen.at(labels[i]))] = int64_t(i);
    for (auto& value : code) value = place[size_t(value)];
    columns["target"] = tensor_of(code, {rows}, at::kLong);
    columns["labels"] = bytes_of(join(labels, "\n"));
  } else {
    columns["target"] = tensor_of(target, {rows}, at::kFloat);
  }
  return columns;
}

std::vector<std::string> lines_of(const at::Tensor& bytes) {
  std::istringstream text(std::string(static_cast<const char*>(bytes.const_data_ptr()), size_t(bytes.numel())));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> names_of(const Columns& columns) {
  return NameList(columns.at("name_bytes"), columns.at("name_ends")).strings();
}

// As parse makes them, with classes in their range.
bool is_sound(const Columns& columns, const TableOptions& options) {
  if (!has_column(columns, "features", at::kFloat, {-1, -1})) return false;
  const int64_t rows = columns.at("features").size(0), width = columns.at("features").size(1);
  if (!has_column(columns, "name_bytes", at::kByte, {-1}) || !has_column(columns, "name_ends", at::kLong, {width}))
    return false;
  names_of(columns);
  if (options.weight.empty() ? columns.count("weight") != 0 : !has_column(columns, "weight", at::kFloat, {rows}))
    return false;
  if (!options.classification) return has_column(columns, "target", at::kFloat, {rows}) && columns.count("labels") == 0;
  return has_column(columns, "target", at::kLong, {rows}) && has_column(columns, "labels", at::kByte, {-1}) &&
         all_below(columns.at("target"), int64_t(lines_of(columns.at("labels")).size()));
}

std::string described(const TableOptions& options) {
  return Json{{"delimiter", std::string(1, options.delimiter)},
              {"header", options.header},
              {"features", options.features},
              {"target", options.target},
              {"weight", options.weight},
              {"classification", options.classification}}
      .dump();
}

}  // namespace

TablePart read_table_csv(const std::string& path, const TableOptions& options) {
  const MappedFile file(path);
  const Columns columns = cached_columns(
      file, "table " + described(options), [&] { return parse(file, options); },
      [&](const Columns& cached) { return is_sound(cached, options); });
  TablePart part;
  part.features = columns.at("features");
  part.target = columns.at("target");
  if (columns.count("weight") != 0) part.weight = columns.at("weight");
  if (columns.count("labels") != 0) part.labels = lines_of(columns.at("labels"));
  part.columns = names_of(columns);
  part.fingerprint = file.hash();
  return part;
}

}  // namespace convoy
