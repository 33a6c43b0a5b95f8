// One pass over the lines; ids are looked up by their text.
#include "core/data/features.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>

#include "core/data/delimited.h"
#include "core/data/header.h"
#include "core/data/mapped_file.h"
#include "core/data/rows.h"
#include "core/error.h"

namespace convoy {
namespace {

bool ends_in(const std::string& path, const std::string& end) {
  return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

std::vector<std::string> columns_of(const FeatureFile& file, const Header& header) {
  if (!file.columns.empty()) return file.columns;
  std::vector<std::string> names = header.names();
  names.erase(std::remove(names.begin(), names.end(), file.id), names.end());
  if (names.empty())
    throw Error(Failure::config, str(file.path, ":1: has no column but ", file.option, ".id; add columns of numbers"));
  return names;
}

[[noreturn]] void fail_missing(const Features& source, const NameList& ids, const std::vector<int64_t>& numbers,
                               const std::string& thing) {
  const auto missing = std::count(numbers.begin(), numbers.end(), -1);
  const int64_t first = std::find(numbers.begin(), numbers.end(), -1) - numbers.begin();
  throw Error(Failure::corrupt_data,
              str(source.path, ": has no ", join(source.names, ", "), " for ", thing, " '", ids[first], "'",
                  missing > 1 ? str(" and ", missing - 1, " more of ", ids.size(), " ", thing, "s") : std::string(),
                  "; add a line for each ", thing, " of the interactions, or leave the interactions out"));
}

}  // namespace

char delimiter_from(const Options& options, bool typed) {
  if (!options.has("delimiter")) return typed ? '\t' : ',';
  const std::string& text = options.text("delimiter");
  if (text == "tab" || text == "\\t") return '\t';
  if (text.size() != 1) options.fail("delimiter", "has to be one character, or the word tab");
  return text[0];
}

bool typed_header_from(const Options& options, const std::string& path, const std::vector<std::string>& typed_endings) {
  const std::string& format = options.text("format");
  const bool typed = format == "inter" ||
                     (format == "auto" && std::any_of(typed_endings.begin(), typed_endings.end(),
                                                      [&](const std::string& end) { return ends_in(path, end); }));
  if (typed && !options.boolean("header")) options.fail("header", "a typed header cannot be absent: format: csv");
  return typed;
}

FeatureFile FeatureFile::from(const Options& data, const std::string& thing) {
  FeatureFile file;
  file.thing = thing;
  const std::string section = thing + "_features";
  file.option = "data." + section;
  if (!data.json().contains(section) || !data.has(section)) return file;
  const Options options = data.section(section);
  file.path = options.text("path");
  file.typed_header = typed_header_from(options, file.path, {".item", ".user", ".inter"});
  file.delimiter = delimiter_from(options, file.typed_header);
  file.header = options.boolean("header");
  file.id = options.has("id") ? options.text("id") : data.section("columns").text(thing);
  file.columns = options.texts("columns");
  return file;
}

std::string FeatureFile::described() const {
  return Json{{"typed", typed_header},
              {"delimiter", std::string(1, delimiter)},
              {"header", header},
              {"id", id},
              {"columns", columns}}
      .dump();
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
    if (id.empty()) reader.fail(id_column, str("the ", file.thing, " is missing"));
    const auto [earlier, added] = lines.emplace(id, reader.line());
    if (!added)
      reader.fail(id_column,
                  str(file.thing, " '", id, "' has a line already, line ", earlier->second, "; keep one of them"));
    ids.push_back(id);
    for (size_t column : columns) values.push_back(float_of(reader, column, option.c_str()));
  }
  if (ids.empty()) throw Error(Failure::corrupt_data, str(file.path, ": holds no lines but its header"));
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
  const auto sound = [](const Columns& columns) {
    for (const char* list : {"ids", "names"})
      if (!has_column(columns, list, at::kByte, {-1})) return false;
    if (!has_column(columns, "id_ends", at::kLong, {-1}) || !has_column(columns, "name_ends", at::kLong, {-1}))
      return false;
    const NameList ids(columns.at("ids"), columns.at("id_ends")), names(columns.at("names"), columns.at("name_ends"));
    return has_column(columns, "values", at::kFloat, {ids.size(), names.size()});
  };
  const Columns columns = cached_columns(mapped, "features " + file.described(), parse, sound);
  Features features;
  features.path = file.path;
  features.ids = NameList(columns.at("ids"), columns.at("id_ends"));
  features.values = columns.at("values");
  features.names = NameList(columns.at("names"), columns.at("name_ends")).strings();
  features.fingerprint = mapped.hash();
  return features;
}

at::Tensor features_of(const std::vector<Features>& sources, const NameList& ids, const std::string& thing) {
  std::vector<at::Tensor> parts;
  for (const Features& source : sources) {
    const std::vector<int64_t> numbers = NameNumbers(source.ids).find_all(ids);
    if (std::find(numbers.begin(), numbers.end(), -1) != numbers.end()) fail_missing(source, ids, numbers, thing);
    parts.push_back(at::empty({ids.size(), source.values.size(1)}, at::kFloat));
    gather_rows(source.values, numbers.data(), ids.size(), parts.back());
  }
  return parts.empty() ? at::Tensor() : at::cat(parts, 1);
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
        throw Error(Failure::config, str(source.path, ": column '", name,
                                         "' is a feature already, in data.columns; take one of the two"));
      all.push_back(name);
    }
  return all;
}

}  // namespace convoy
