#include "core/data/preparation.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/formats/npy_header.h"
#include "core/data/rows.h"

namespace convoy {
namespace {

constexpr float missing_value = std::numeric_limits<float>::quiet_NaN();

// Sums of the columns over rows of an array. The first pass sums values, for the means; the second pass sums squared
// distances from the means.
struct ColumnSums {
  explicit ColumnSums(size_t columns) : counts(columns), sums(columns) {}
  std::vector<int64_t> counts;
  std::vector<double> sums;
};

template <class Value>
ColumnSums column_sums(const at::Tensor& raw, const std::vector<int64_t>* rows, const Value& value) {
  const int64_t width = raw.size(1), all = rows == nullptr ? raw.size(0) : int64_t(rows->size());
  ColumnSums result(static_cast<size_t>(width));
  constexpr int64_t piece = 4096;
  at::Tensor some = at::empty({std::min(piece, all), width}, at::kFloat);
  std::vector<int64_t> chosen;
  for (int64_t first = 0; first < all; first += piece) {
    const int64_t count = std::min(piece, all - first);
    chosen.resize(size_t(count));
    for (int64_t i = 0; i < count; ++i) chosen[size_t(i)] = rows == nullptr ? first + i : (*rows)[size_t(first + i)];
    at::Tensor part = some.narrow(0, 0, count);
    gather_rows(raw, chosen.data(), count, part);
    const float* x = part.const_data_ptr<float>();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t column = 0; column < width; ++column, ++x) {
        if (std::isnan(*x)) continue;
        ++result.counts[size_t(column)];
        result.sums[size_t(column)] += value(size_t(column), double(*x));
      }
  }
  return result;
}

bool parse_number(const std::string& text, double& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

Json column_json(const PreparedColumn& column) {
  if (column.categorical) return {{"name", column.name}, {"categories", column.categories}};
  return {{"name", column.name},
          {"mean", column.mean},
          {"deviation", column.deviation},
          {"scaled", column.scaled},
          {"fills", column.fills}};
}

PreparedColumn column_of(const Json& json) {
  PreparedColumn column;
  column.name = json.at("name").get<std::string>();
  column.categorical = json.contains("categories");
  if (column.categorical) {
    column.categories = json.at("categories").get<std::vector<std::string>>();
    return column;
  }
  column.mean = json.at("mean").get<double>();
  column.deviation = json.at("deviation").get<double>();
  column.scaled = json.at("scaled").get<bool>();
  column.fills = json.at("fills").get<bool>();
  return column;
}

}  // namespace

PreparationOptions PreparationOptions::from(const Options& data) {
  PreparationOptions options;
  // Configurations of earlier versions lack the keys.
  options.scale = data.has("scale") && data.text("scale") == "standard";
  options.fill = data.has("missing") && data.text("missing") == "fill";
  if (data.has("categorical")) options.categorical = data.texts("categorical");
  return options;
}

bool PreparationOptions::is_categorical(const std::string& column) const {
  return std::find(categorical.begin(), categorical.end(), column) != categorical.end();
}

Preparation::Preparation(std::vector<PreparedColumn> columns) : columns_(std::move(columns)) {
  for (const PreparedColumn& column : columns_) {
    width_ += column.width();
    identity_ = identity_ && !column.categorical && !column.scaled && !column.fills;
  }
}

Preparation::Preparation(const std::vector<std::string>& names, const std::vector<ColumnWords>& words,
                         const at::Tensor& raw, const std::vector<int64_t>* rows, const PreparationOptions& options) {
  const size_t width = names.size();
  CONVOY_CHECK(raw.dim() == 2 && raw.size(1) == int64_t(width), "rows of another width than their names");
  ColumnSums means = column_sums(raw, rows, [](size_t, double x) { return x; });
  for (size_t column = 0; column < width; ++column)
    means.sums[column] /= double(std::max<int64_t>(1, means.counts[column]));
  const ColumnSums squares = column_sums(
      raw, rows, [&](size_t column, double x) { return (x - means.sums[column]) * (x - means.sums[column]); });
  std::vector<PreparedColumn> columns;
  for (size_t column = 0; column < width; ++column) {
    PreparedColumn prepared;
    prepared.name = names[column];
    prepared.categorical = column < words.size() && !words[column].empty();
    if (prepared.categorical) prepared.categories = words[column];
    const double deviation = std::sqrt(squares.sums[column] / double(std::max<int64_t>(1, squares.counts[column])));
    spreads_.push_back(deviation);
    if (!prepared.categorical) {
      prepared.fills = options.fill;
      prepared.scaled = options.scale;
      prepared.mean = means.sums[column];
      // A constant column of floats has a deviation of about 1e-7 of its mean, by rounding.
      if (deviation > 1e-6 * std::abs(prepared.mean)) prepared.deviation = deviation;
    }
    columns.push_back(std::move(prepared));
  }
  const std::vector<double> spreads = std::move(spreads_);
  *this = Preparation(std::move(columns));
  if (!options.scale) spreads_ = spreads;
}

void Preparation::apply(const float* from, int64_t rows, float* to) const {
  for (int64_t row = 0; row < rows; ++row)
    for (const PreparedColumn& column : columns_) {
      const float x = *from++;
      if (column.categorical) {
        const auto categories = int64_t(column.categories.size());
        std::fill_n(to, categories, 0.0F);
        if (x >= 0 && x < float(categories)) to[int64_t(x)] = 1;
        to += categories;
        continue;
      }
      const double value = std::isnan(x) ? column.mean : double(x);
      *to++ = column.scaled ? float((value - column.mean) / column.deviation) : float(value);
    }
}

void Preparation::check_words(const std::vector<ColumnWords>& words) const {
  for (size_t column = 0; column < columns_.size(); ++column) {
    const bool has_words = column < words.size() && !words[column].empty();
    if (has_words == columns_[column].categorical) continue;
    throw Error(
        Failure::config, "data.categorical: column '", columns_[column].name, "' is ",
        has_words ? "categorical, and was not in the checkpoint" : "categorical in the checkpoint, and is not now",
        "; name the same columns");
  }
}

at::Tensor Preparation::applied(const at::Tensor& raw) const {
  if (identity_) return raw;
  const at::Tensor rows = raw.contiguous();
  at::Tensor out = at::empty({rows.size(0), width_}, at::kFloat);
  apply(rows.const_data_ptr<float>(), rows.size(0), out.mutable_data_ptr<float>());
  return out;
}

std::string Preparation::scale_hint() const {
  constexpr double wide = 30;  // least deviation for a hint, and least ratio to the smallest deviation
  double least = std::numeric_limits<double>::infinity(), most = 0;
  size_t widest = 0;
  for (size_t column = 0; column < spreads_.size(); ++column) {
    if (columns_[column].categorical || spreads_[column] == 0) continue;
    least = std::min(least, spreads_[column]);
    if (spreads_[column] > most) widest = column;
    most = std::max(most, spreads_[column]);
  }
  if (most < wide || most < wide * least) return "";
  return str("column '", columns_[widest].name, "' has a standard deviation of ", most, " and another column ", least,
             ": training of unscaled columns is slow or fails; type --set data.scale=standard");
}

NumberedNames stored_preparations(const Preparations& preparations) {
  std::vector<std::string> lines;
  for (const auto& [field, preparation] : preparations) {
    if (preparation.is_identity()) continue;
    Json columns = Json::array();
    for (const PreparedColumn& column : preparation.columns()) columns.push_back(column_json(column));
    lines.push_back(Json{{"field", field}, {"columns", columns}}.dump());
  }
  return {NameList(lines)};
}

Preparations preparations_of(const DataContents& contents) {
  Preparations preparations;
  const auto found = contents.lists.find("preparation");
  if (found == contents.lists.end()) return preparations;
  for (const std::string& line : found->second.names.strings()) {
    try {
      const Json json = Json::parse(line);
      std::vector<PreparedColumn> columns;
      for (const Json& column : json.at("columns")) columns.push_back(column_of(column));
      preparations[json.at("field").get<std::string>()] = Preparation(std::move(columns));
    } catch (const Json::exception& error) {
      throw Error(Failure::corrupt_data, "the checkpoint's list 'preparation' is not of this version: ", error.what());
    }
  }
  return preparations;
}

int64_t WordNumbers::operator()(std::string_view word) {
  const auto [found, added] = numbers_.try_emplace(std::string(word), int64_t(words_.size()));
  if (added) words_.emplace_back(word);
  return found->second;
}

std::vector<int64_t> WordNumbers::sort() {
  std::vector<double> values(words_.size());
  bool numbers = true;
  for (size_t i = 0; i < words_.size(); ++i)
    numbers = numbers && (words_[i].empty() || parse_number(words_[i], values[i]));
  std::vector<int64_t> order(words_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const std::string &left = words_[size_t(a)], &right = words_[size_t(b)];
    if (numbers && left.empty() == right.empty() && values[size_t(a)] != values[size_t(b)])
      return values[size_t(a)] < values[size_t(b)];
    return left < right;
  });
  std::vector<int64_t> becomes(words_.size());
  ColumnWords sorted;
  for (size_t i = 0; i < order.size(); ++i) {
    becomes[size_t(order[i])] = int64_t(i);
    sorted.push_back(words_[size_t(order[i])]);
  }
  words_ = sorted;
  numbers_.clear();
  for (size_t i = 0; i < words_.size(); ++i) numbers_.emplace(words_[i], int64_t(i));
  return becomes;
}

float raw_number(const DelimitedReader& reader, size_t column, bool fill, const char* option) {
  const std::string_view field = reader.field(column);
  double value = 0;
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  constexpr double most = std::numeric_limits<float>::max();
  if (error == std::errc() && stop == field.data() + field.size() && std::abs(value) <= most) return float(value);
  // The field has spaces around its number, or means a missing value, or is a mistake.
  if (!is_missing_value(reader.field(column))) return float_of(reader, column, option);
  if (fill) return missing_value;
  const std::string what = field.empty() ? "a number is missing" : str("'", field, "' marks a missing number");
  reader.fail(column, str(what, "; ", option, " takes a column of numbers: correct the line, or train with ",
                          "--set data.missing=fill"));
}

std::string_view raw_word(const DelimitedReader& reader, size_t column, bool fill) {
  const std::string_view word = reader.field(column);
  if (is_missing_value(word)) {
    if (fill) return {};
    reader.fail(column, "the category is missing; correct the line, or train with --set data.missing=fill");
  }
  if (valid_utf8(word) != word) reader.fail(column, "a category is not valid UTF-8; convert the file");
  return word;
}

RawValues::RawValues(const Preparation& preparation) : columns_(preparation.columns()) {
  for (const PreparedColumn& column : columns_) {
    numbers_.emplace_back();
    for (size_t i = 0; i < column.categories.size(); ++i) numbers_.back().emplace(column.categories[i], float(i));
  }
}

std::optional<float> RawValues::read(const DelimitedReader& reader, size_t field, size_t index,
                                     const char* option) const {
  const PreparedColumn& column = columns_[index];
  if (!column.categorical) return raw_number(reader, field, column.fills, option);
  const std::string_view word = reader.field(field);
  const auto found = numbers_[index].find(is_missing_value(word) ? std::string() : std::string(word));
  if (found == numbers_[index].end()) return std::nullopt;
  return found->second;
}

}  // namespace convoy
