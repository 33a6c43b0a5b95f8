#include "core/data/formats/npy_header.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/base/error.h"

namespace convoy {

// --- The header of a delimited file ---

Header::Header(DelimitedReader& reader, bool typed, bool present) : present_(present), where_(reader.path()) {
  if (!reader.next()) throw Error(Failure::corrupt_data, where_, ": is empty");
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
        reader.fail(column, "'", name,
                    "' has no type: a typed header has name:type, as in user_id:token; for a file "
                    "with names only, write format: csv");
      }
      type = name.substr(colon + 1);
      name = name.substr(0, colon);
      static const std::vector<std::string> known{"token", "float", "token_seq", "float_seq"};
      if (std::find(known.begin(), known.end(), type) == known.end()) {
        reader.fail(column, "unknown type '", type, "'; valid are ", join(known, ", "));
      }
    }
    if (name.empty())
      reader.fail(column, "column ", column + 1,
                  " has no name; give it one, or write the file without row numbers (pandas: index=False)");
    if (has(std::string(name))) reader.fail(column, "two columns are called '", name, "'");
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
    throw Error(Failure::config, where_, ":1: no column '", name, "' (", option, "); the file has ", join(names_, ", "),
                near.empty() ? std::string() : "; did you mean " + near + "?");
  }
  const auto column = size_t(found - names_.begin());
  const std::string& type = types_[column];
  if (!type.empty() && type != (number ? "float" : "token")) {
    throw Error(Failure::config, where_, ":1: column '", name, "' is a ", type, ", where ", option, " needs a ",
                number ? "float" : "token");
  }
  return column;
}

TextFormat TextFormat::from(const Options& options, const std::string& path,
                            const std::vector<std::string>& typed_endings) {
  TextFormat form;
  const std::string& format = options.text("format");
  form.typed_header = format == "inter" ||
                      (format == "auto" && std::any_of(typed_endings.begin(), typed_endings.end(),
                                                       [&](const std::string& end) { return ends_in(path, end); }));
  form.header = options.boolean("header");
  if (form.typed_header && !form.header) options.fail("header", "a typed header cannot be absent: format: csv");
  if (!options.has("delimiter")) {
    form.delimiter = form.typed_header ? '\t' : ',';
    return form;
  }
  form.delimiter = options.text("delimiter") == "\\t" ? '\t' : delimiter_of(options);
  return form;
}

Json TextFormat::cache_key() const {
  return {{"typed", typed_header}, {"delimiter", std::string(1, delimiter)}, {"header", header}};
}

double number_of(const DelimitedReader& reader, size_t column, const char* option) {
  try {
    return reader.number(column);
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), "; ", option, " takes a column of numbers");
  }
}

float float_of(const DelimitedReader& reader, size_t column, const char* option) {
  return checked_float(reader, column, number_of(reader, column, option));
}

float checked_float(const DelimitedReader& reader, size_t column, double number) {
  if (std::abs(number) > double(std::numeric_limits<float>::max()))
    reader.fail(column, "'", reader.field(column), "' does not fit into a 32-bit real; scale the column");
  return float(number);
}

namespace {

// The text after a key of the header's dictionary, without leading spaces; "" if the key is missing.
std::string_view after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

// The text between `open`, which must come first, and `close`; else nullopt.
std::optional<std::string> enclosed(std::string_view text, char open, char close) {
  const size_t end = text.find(close, 1);
  if (text.empty() || text[0] != open || end == std::string_view::npos) return std::nullopt;
  return std::string(text.substr(1, end - 1));
}

}  // namespace

NpyHeader read_npy_header(const std::string& path, std::string_view text) {
  const auto fail = [&](const std::string& reason) { throw Error(Failure::corrupt_data, path, ": ", reason); };
  if (text.size() < 12 || text.substr(0, 6) != "\x93NUMPY") fail("is not an .npy file");
  const int major = text[6];
  if (major < 1 || major > 3) fail(str("is of .npy version ", major, "; 1 to 3 can be read"));
  const size_t length_bytes = major == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = length_bytes; i > 0; --i) length = length << 8 | static_cast<unsigned char>(text[8 + i - 1]);
  NpyHeader result;
  result.data = 8 + length_bytes + length;
  if (result.data > text.size()) fail("ends within its header");

  const std::string_view header = text.substr(8 + length_bytes, length);
  const auto descr = enclosed(after(header, "'descr':"), '\'', '\'');
  const auto shape = enclosed(after(header, "'shape':"), '(', ')');
  const std::string_view order = after(header, "'fortran_order':");
  result.fortran = order.substr(0, 4) == "True";
  if (!descr || !shape || shape->find_first_not_of("0123456789, ") != std::string::npos ||
      (!result.fortran && order.substr(0, 5) != "False"))
    fail("has a header that is not of plain numbers");
  result.type = *descr;
  for (size_t at = 0; (at = shape->find_first_of("0123456789", at)) != std::string::npos;) {
    const std::string digits = shape->substr(at, shape->find_first_not_of("0123456789", at) - at);
    at += digits.size();
    if (digits.size() > 18) fail("has impossible sizes");
    result.shape.push_back(std::stoll(digits));
  }
  return result;
}

}  // namespace convoy
