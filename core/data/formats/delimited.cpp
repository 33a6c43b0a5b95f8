#include "core/data/formats/delimited.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/base/error.h"

namespace convoy {
namespace {

std::string shown(std::string_view field) {
  std::string text(field.substr(0, 40));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32) c = '?';
  }
  return field.size() > 40 ? text + "…" : text;
}

std::string_view trimmed(std::string_view field) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
  return field;
}

}  // namespace

DelimitedReader::DelimitedReader(std::string path, std::string_view text, char delimiter)
    : path_(std::move(path)), at_(text.data()), end_(text.data() + text.size()), delimiter_(delimiter) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") at_ += 3;
  line_start_ = line_end_ = at_;
}

void DelimitedReader::continue_from(int64_t line, size_t columns) {
  line_ = line;
  fields_.resize(columns);
  first_ = false;
}

void DelimitedReader::fail_at(const char* position, const std::string& reason) const {
  throw Error(Failure::corrupt_data, path_, ":", line_, ":", position - line_start_ + 1, ": ", reason);
}

const char* DelimitedReader::split_quoted(const char* at, const char* line_end) {
  const char* close = at + 1;
  while (true) {
    close = static_cast<const char*>(std::memchr(close, '"', size_t(line_end - close)));
    if (close == nullptr) fail_at(at, "a quoted field does not end on its line");
    if (close + 1 < line_end && close[1] == '"') {
      close += 2;
      continue;
    }
    break;
  }
  if (close + 1 < line_end && close[1] != delimiter_) fail_at(close + 1, "text after a quoted field");
  fields_.emplace_back(at + 1, size_t(close - at - 1));
  return close + 1;
}

bool DelimitedReader::next() {
  if (at_ == end_) return false;
  ++line_;
  line_start_ = at_;
  const char* newline = static_cast<const char*>(std::memchr(at_, '\n', size_t(end_ - at_)));
  const char* line_end = newline == nullptr ? end_ : newline;
  at_ = newline == nullptr ? end_ : newline + 1;
  if (line_end > line_start_ && line_end[-1] == '\r') --line_end;
  line_end_ = line_end;
  if (line_end == line_start_) {
    for (const char* rest = at_; rest != end_; ++rest) {
      if (*rest != '\n' && *rest != '\r') fail_at(line_start_, "a blank line between rows");
    }
    at_ = end_;
    return false;
  }

  const size_t expected = fields_.size();
  fields_.clear();
  const char* field = line_start_;
  while (true) {
    const char* stop = nullptr;
    if (field != line_end && *field == '"') {
      stop = split_quoted(field, line_end);
      if (stop == line_end) stop = nullptr;
    } else {
      stop = static_cast<const char*>(std::memchr(field, delimiter_, size_t(line_end - field)));
      fields_.emplace_back(field, size_t((stop == nullptr ? line_end : stop) - field));
    }
    if (stop == nullptr) break;
    field = stop + 1;
  }
  if (!first_ && fields_.size() != expected) {
    const char* position = fields_.size() > expected ? fields_[expected].data() : line_end;
    fail_at(position, str(fields_.size(), " fields where the first line has ", expected));
  }
  first_ = false;
  return true;
}

double DelimitedReader::number(size_t column) const {
  const std::string_view text = trimmed(fields_[column]);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty()) fail(column, "a number is missing");
  if (error == std::errc::result_out_of_range) fail(column, str("'", shown(text), "' is out of range"));
  if (error != std::errc() || stop != text.data() + text.size()) {
    fail(column, str("'", shown(text), "' is not a number"));
  }
  if (!std::isfinite(value)) fail(column, str("'", shown(text), "' is not finite"));
  return value;
}

std::string plain_name(std::string_view name) {
  std::string plain;
  for (size_t i = 0; i < name.size(); ++i) {
    plain += name[i];
    if (name[i] == '"' && i + 1 < name.size() && name[i + 1] == '"') ++i;
  }
  return plain;
}

void append_field(std::string& line, std::string_view field, char delimiter) {
  const char special[] = {delimiter, '"', '\r', '\n'};
  if (field.find_first_of(std::string_view(special, sizeof special)) == std::string_view::npos) {
    line += field;
    return;
  }
  line += '"';
  for (const char c : field) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

bool is_missing_value(std::string_view field) {
  static constexpr std::array<std::string_view, 9> marks{"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"};
  return std::find(marks.begin(), marks.end(), trimmed(field)) != marks.end();
}

char delimiter_of(const Options& options) {
  const std::string& text = options.text("delimiter");
  if (text == "tab") return '\t';
  if (text.size() != 1) options.fail("delimiter", "has to be one character, or the word tab");
  return text[0];
}

}  // namespace convoy
