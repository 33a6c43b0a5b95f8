// The first line of a delimited file: names of columns, perhaps with types ("age:float").
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/data/delimited.h"

namespace convoy {

class Header {
 public:
  // Reads the first line of `reader`. Without a header that line is the first row, and columns are called "1", "2", …
  // Throws Error(corrupt_data) for an empty file, an unknown type, a name given twice.
  Header(DelimitedReader& reader, bool typed, bool present);

  bool first_row_read() const { return !present_; }  // the reader stands on the first row already
  bool has(const std::string& name) const;
  // The column called `name`; `option` is what the user would change. Error(config) naming the columns that there are,
  // or that the column is of another type.
  size_t token(const std::string& name, const std::string& option) const { return find(name, option, false); }
  size_t number(const std::string& name, const std::string& option) const { return find(name, option, true); }
  const std::vector<std::string>& names() const { return names_; }

 private:
  size_t find(const std::string& name, const std::string& option, bool number) const;

  bool present_;
  std::string where_;  // "path:1"
  std::vector<std::string> names_;
  std::vector<std::string> types_;  // "" where not told
};

// The number in a column that `option` chose. Throws Error(corrupt_data): the mistake may be the file's or the option's.
double number_of(const DelimitedReader& reader, size_t column, const char* option);
float float_of(const DelimitedReader& reader, size_t column, const char* option);  // fits into 32 bits, else throws

}  // namespace convoy
