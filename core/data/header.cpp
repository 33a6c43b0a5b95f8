// Names and types of columns.
#include "core/data/header.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace convoy {

Header::Header(DelimitedReader& reader, bool typed, bool present) : present_(present), where_(reader.path()) {
  if (!reader.next()) throw Error(Failure::corrupt_data, str(where_, ": is empty"));
  for (size_t column = 0; column < reader.columns(); ++column) {
    if (!present) {
      names_.push_back(std::to_string(column + 1));
      types_.emplace_back();
      continue;
    }
    std::string_view name = reader.field(column);
    std::string type;
    if (typed) {
      const size_t colon = name.rfind(':');
      if (colon == std::string_view::npos) {
        reader.fail(column, str("'", name,
                                "' has no type: a typed header says name:type, as in user_id:token; for a file "
                                "with names only say format: csv"));
      }
      type = name.substr(colon + 1);
      name = name.substr(0, colon);
      static const std::vector<std::string> known{"token", "float", "token_seq", "float_seq"};
      if (std::find(known.begin(), known.end(), type) == known.end()) {
        reader.fail(column, str("unknown type '", type, "'; valid are ", join(known, ", ")));
      }
    }
    if (name.empty()) reader.fail(column, "a column has no name");
    if (has(std::string(name))) reader.fail(column, str("two columns are called '", name, "'"));
    names_.emplace_back(name);
    types_.push_back(type);
  }
}

bool Header::has(const std::string& name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

size_t Header::find(const std::string& name, const std::string& option, bool number) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    const std::string near = nearest(name, names_);
    throw Error(Failure::config,
                str(where_, ":1: no column '", name, "' (", option, "); the file has ", join(names_, ", "),
                    near.empty() ? std::string() : "; did you mean " + near + "?"));
  }
  const auto column = size_t(found - names_.begin());
  const std::string& type = types_[column];
  if (!type.empty() && type != (number ? "float" : "token")) {
    throw Error(Failure::config, str(where_, ":1: column '", name, "' is a ", type, ", where ", option, " needs a ",
                                     number ? "float" : "token"));
  }
  return column;
}

double number_of(const DelimitedReader& reader, size_t column, const char* option) {
  try {
    return reader.number(column);
  } catch (const Error& error) {
    throw Error(error.kind(), str(error.what(), "; ", option, " takes a column of numbers"));
  }
}

float float_of(const DelimitedReader& reader, size_t column, const char* option) {
  const double number = number_of(reader, column, option);
  if (std::abs(number) > double(std::numeric_limits<float>::max()))
    reader.fail(column, str("'", reader.field(column), "' does not fit into a 32-bit real; scale the column"));
  return float(number);
}

}  // namespace convoy
