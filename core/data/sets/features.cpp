// One pass over the lines; a hash table maps ids to numbers.

#include "core/data/sets/features.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/data/formats/delimited.h"
#include "core/data/formats/input_files.h"
#include "core/data/formats/npy_header.h"
#include "core/data/preparation.h"
#include "core/data/rows.h"

namespace convoy {

ValuesPerId::ValuesPerId(size_t columns) : columns_(columns), watched_(columns) {
  std::iota(watched_.begin(), watched_.end(), size_t(0));
}

size_t ValuesPerId::add(int32_t id, const float* row, int64_t line) {
  if (watched_.empty()) return columns_;
  const size_t at = size_t(id) * columns_;
  if (at == values_.size()) {
    values_.insert(values_.end(), row, row + columns_);
    lines_.push_back(line);
    return columns_;
  }
  const float* first = values_.data() + at;
  size_t differs = columns_;
  for (size_t column : watched_)
    if (first[column] != row[column]) {
      differs = column;
      break;
    }
  if (differs == columns_) return columns_;
  watched_.erase(std::remove_if(watched_.begin(), watched_.end(), [&](size_t c) { return first[c] != row[c]; }),
                 watched_.end());
  if (watched_.empty()) drop();
  return differs;
}

bool ValuesPerId::merge(const ValuesPerId& part, const std::vector<int32_t>& numbers) {
  const size_t before = watched_.size();
  watched_.erase(std::remove_if(watched_.begin(), watched_.end(),
                                [&](size_t column) {
                                  return !std::binary_search(part.watched_.begin(), part.watched_.end(), column);
                                }),
                 watched_.end());
  if (watched_.empty()) drop();
  for (size_t i = 0; i < numbers.size() && !watched_.empty(); ++i)
    add(numbers[i], part.values_.data() + i * columns_, part.lines_[i]);
  return watched_.size() == before;
}

bool ValuesPerId::same_for_all(size_t column) const {
  for (size_t at = column; at < values_.size(); at += columns_)
    if (values_[at] != values_[column]) return false;
  return true;
}

at::Tensor ValuesPerId::values() const {
  at::Tensor table = at::empty({int64_t(lines_.size()), int64_t(columns_)}, at::kFloat);
  std::copy(values_.begin(), values_.end(), table.mutable_data_ptr<float>());
  return table;
}

void ValuesPerId::drop() {
  values_ = {};
  lines_ = {};
}

namespace {

std::vector<std::string> columns_of(const FeatureFile& file, const Header& header) {
  if (!file.columns.empty()) return file.columns;
  std::vector<std::string> names = header.names();
  names.erase(std::remove(names.begin(), names.end(), file.id), names.end());
  if (names.empty())
    throw Error(Failure::config, file.path, ":1: has only the column of ids '", file.id, "'; add columns of numbers");
  return names;
}

[[noreturn]] void fail_missing(const Features& source, const NameList& ids, const std::vector<int64_t>& numbers,
                               const std::string& entity) {
  const auto missing = std::count(numbers.begin(), numbers.end(), -1);
  const int64_t first = std::find(numbers.begin(), numbers.end(), -1) - numbers.begin();
  throw Error(Failure::corrupt_data, source.path, ": has no ", join(source.names, ", "), " for ", entity, " '",
              ids[first], "'",
              missing > 1 ? str(" and ", missing - 1, " more of ", ids.size(), " ", entity, "s") : std::string(),
              "; add a line for each ", entity, " of the interactions, or leave the interactions out");
}

}  // namespace

FeatureFile FeatureFile::from(const Options& data, const std::string& entity) {
  FeatureFile file;
  file.entity = entity;
  const std::string section = entity + "_features";
  file.option = "data." + section;
  if (!data.json().contains(section) || !data.has(section)) return file;
  const Options options = data.section(section);
  file.path = options.text("path");
  static_cast<TextFormat&>(file) = TextFormat::from(options, file.path, {".item", ".user", ".inter"});
  file.id = options.has("id") ? options.text("id") : data.section("columns").text(entity);
  file.columns = options.texts("columns");
  file.fill = PreparationOptions::from(data).fill;
  return file;
}

std::string FeatureFile::cache_key() const {
  Json key = TextFormat::cache_key();
  key["id"] = id;
  key["columns"] = columns;
  if (fill) key["fill"] = true;  // else as in caches of earlier versions
  return key.dump();
}

Features parse_features(const FeatureFile& file, std::string_view text) {
  DelimitedReader reader(file.path, text, file.delimiter);
  const Header header(reader, file.typed_header, file.header);
  const size_t id_column = header.token(file.id, file.option + ".id");
  const std::string option = file.option + ".columns";
  Features features;
  features.path = file.path;
  features.names = columns_of(file, header);
  std::vector<size_t> columns;
  for (const std::string& name : features.names) columns.push_back(header.number(name, option));

  std::unordered_map<std::string_view, int64_t> lines;
  std::vector<std::string_view> ids;
  std::vector<float> values;
  for (bool more = header.first_row_read() || reader.next(); more; more = reader.next()) {
    const std::string_view id = reader.field(id_column);
    if (id.empty()) reader.fail(id_column, "the ", file.entity, " is missing");
    const auto [earlier, added] = lines.emplace(id, reader.line());
    if (!added)
      reader.fail(id_column, file.entity, " '", id, "' has a line already, line ", earlier->second,
                  "; keep one of them");
    ids.push_back(id);
    for (size_t column : columns) values.push_back(raw_number(reader, column, file.fill, option.c_str()));
  }
  if (ids.empty()) throw Error(Failure::corrupt_data, file.path, ": holds no lines but its header");
  features.ids = NameList(ids);
  features.values = at::empty({int64_t(ids.size()), int64_t(columns.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), features.values.mutable_data_ptr<float>());
  return features;
}

Features read_features(const FeatureFile& file) {
  const MappedFile mapped(file.path);
  const auto parse = [&] {
    const Features features = parse_features(file, mapped.text());
    const NameList names(features.names);
    return Columns{{"ids", features.ids.bytes()},
                   {"id_ends", features.ids.ends()},
                   {"values", features.values},
                   {"names", names.bytes()},
                   {"name_ends", names.ends()}};
  };
  const auto check = [](const Columns& columns) {
    for (const char* list : {"ids", "names"})
      if (!has_column(columns, list, at::kByte, {-1})) return false;
    if (!has_column(columns, "id_ends", at::kLong, {-1}) || !has_column(columns, "name_ends", at::kLong, {-1}))
      return false;
    const NameList ids(columns.at("ids"), columns.at("id_ends")), names(columns.at("names"), columns.at("name_ends"));
    return has_column(columns, "values", at::kFloat, {ids.size(), names.size()});
  };
  const Columns columns = cached_columns(mapped, "features " + file.cache_key(), parse, check);
  Features features;
  features.path = file.path;
  features.ids = NameList(columns.at("ids"), columns.at("id_ends"));
  features.values = columns.at("values");
  features.names = NameList(columns.at("names"), columns.at("name_ends")).strings();
  features.fingerprint = mapped.hash();
  return features;
}

at::Tensor features_of(const std::vector<Features>& sources, const NameList& ids, const std::string& entity) {
  std::vector<at::Tensor> columns_by_source;
  for (const Features& source : sources) {
    const std::vector<int64_t> numbers = NameNumbers(source.ids).find_all(ids);
    if (std::find(numbers.begin(), numbers.end(), -1) != numbers.end()) fail_missing(source, ids, numbers, entity);
    columns_by_source.push_back(at::empty({ids.size(), source.values.size(1)}, at::kFloat));
    gather_rows(source.values, numbers.data(), ids.size(), columns_by_source.back());
  }
  return columns_by_source.empty() ? at::Tensor() : at::cat(columns_by_source, 1);
}

NameList rows_as_bytes(const at::Tensor& features) {
  const at::Tensor bytes = features.contiguous().view(at::kByte);
  return {bytes.flatten(), at::arange(1, bytes.size(0) + 1, at::kLong).mul_(bytes.size(1))};
}

at::Tensor rows_from_bytes(const NameList& rows, int64_t columns) {
  const int64_t width = columns * int64_t(sizeof(float));
  if (rows.size() == 0 || rows.bytes().numel() != rows.size() * width) return {};
  return rows.bytes().clone().view({rows.size(), width}).view(at::kFloat);
}

std::vector<std::string> feature_names(const std::vector<Features>& sources) {
  std::vector<std::string> all;
  for (const Features& source : sources)
    for (const std::string& name : source.names) {
      if (std::find(all.begin(), all.end(), name) != all.end())
        throw Error(Failure::config, source.path, ": column '", name,
                    "' is a feature already, in data.columns; take one of the two");
      all.push_back(name);
    }
  return all;
}

}  // namespace convoy
