// Headers of two file formats: the first line of a delimited file, and the header of an .npy file. Without LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/data/formats/delimited.h"

namespace convoy {

// The first line of a delimited file: names of columns, with optional types ("age:float").
class Header {
 public:
  // Reads the first line of `reader`. Without a header that line is the first row, and columns are named "1", "2", …
  // Throws Error(corrupt_data) for an empty file, an unknown type, or a repeated name.
  Header(DelimitedReader& reader, bool typed, bool present);

  bool first_row_read() const { return !present_; }  // the reader is already at the first row
  bool has(const std::string& name) const;
  // Returns the index of the column `name`; `option` is the user's key. A column with a type must have the type float
  // if `number`, else token. Error(config) names the existing columns, or reports a column of a different type.
  size_t column(const std::string& name, const std::string& option, bool number) const {
    return find(name, option, number);
  }
  // Returns the index of a column of type token; errors as for `column`.
  size_t token(const std::string& name, const std::string& option) const { return find(name, option, false); }
  // Returns the index of a column of type float; errors as for `column`.
  size_t number(const std::string& name, const std::string& option) const { return find(name, option, true); }
  const std::vector<std::string>& names() const { return names_; }

 private:
  size_t find(const std::string& name, const std::string& option, bool number) const;

  bool present_;
  std::string where_;  // "path:1"
  std::vector<std::string> names_;
  std::vector<std::string> types_;  // "" if not given
};

// Returns the number in a column that `option` selected. Throws Error(corrupt_data) with file and option.
double number_of(const DelimitedReader& reader, size_t column, const char* option);
float float_of(const DelimitedReader& reader, size_t column, const char* option);  // throws unless it fits into 32 bits
float checked_float(const DelimitedReader& reader, size_t column, double number);  // throws as float_of

// Form of a delimited file, from keys such as data.format, delimiter and header.
struct TextFormat {
  bool typed_header = false;  // name:type, with types token and float, as in RecBole's files
  char delimiter = ',';       // by default a tab for a typed header, else a comma
  bool header = true;         // without one, columns are named "1", "2", …

  // If the format is auto, the header is typed if `path` ends in one of `typed_endings`.
  static TextFormat from(const Options& options, const std::string& path,
                         const std::vector<std::string>& typed_endings);
  Json cache_key() const;  // all members
};

struct NpyHeader {
  std::string type;  // "<f4"
  bool fortran = false;
  std::vector<int64_t> shape;
  size_t data = 0;  // offset of the elements
};

// `text`: the whole file. Throws Error(corrupt_data), prefixed by `path`, if it is not an .npy file.
NpyHeader read_npy_header(const std::string& path, std::string_view text);

}  // namespace convoy
