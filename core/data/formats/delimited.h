// Delimited text, line by line, with errors that name file, line and column. Fields may be quoted ("a, b"; "" is an
// escaped quote); a quoted field ends on its own line.
// Threads: one reader per thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/options.h"

namespace convoy {

class DelimitedReader {
 public:
  // `text` outlives the reader and the views that it returns; `path` is for messages.
  DelimitedReader(std::string path, std::string_view text, char delimiter);

  // For text from the middle of a file: `line` lines come before it, and each line has `columns` fields.
  void continue_from(int64_t line, size_t columns);
  // Reads the next line; false at the end. The first line determines the number of fields. Blank lines are allowed only
  // at the end. Throws Error(corrupt_data).
  bool next();
  size_t columns() const { return fields_.size(); }
  std::string_view field(size_t column) const { return fields_[column]; }
  double number(size_t column) const;  // finite, else throws
  int64_t line() const { return line_; }
  std::string_view text() const { return {line_start_, size_t(line_end_ - line_start_)}; }  // the line without its end
  std::string_view rest() const { return {at_, size_t(end_ - at_)}; }  // text after the lines read so far
  const std::string& path() const { return path_; }

  // "path:line:column: reason"; column is the start of that field.
  template <class... Parts>
  [[noreturn]] void fail(size_t column, const Parts&... reason) const {
    fail_at(fields_[column].data(), convoy::str(reason...));
  }

 private:
  [[noreturn]] void fail_at(const char* position, const std::string& reason) const;
  const char* split_quoted(const char* at, const char* line_end);

  std::string path_;
  const char* at_;
  const char* end_;
  const char* line_start_;
  const char* line_end_;
  char delimiter_;
  int64_t line_ = 0;
  bool first_ = true;
  std::vector<std::string_view> fields_;
};

// Replaces each doubled quote of a name by one quote: the reader leaves them doubled, as in the file.
std::string plain_name(std::string_view name);

// Appends a field to a line of delimited text, in quotes if a reader needs them.
void append_field(std::string& line, std::string_view field, char delimiter);

// True for a field that means "no value": empty, NA, N/A, NaN, nan, null, NULL, None, ?.
bool is_missing_value(std::string_view field);

// The character of the option `delimiter`: one character, or the word tab. Throws ConfigError for another text.
char delimiter_of(const Options& options);

}  // namespace convoy
