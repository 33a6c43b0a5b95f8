// Converts trees of texts to and from untyped data; parses scalars.

#include "core/config/node.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

namespace convoy {
namespace {

Json untyped_scalar(const std::string& text, bool keep_spelling) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (auto number = parse_integer(text).value) return *number;
  if (auto number = parse_real(text).value) {
    const Json json = *number;
    if (!keep_spelling || json.dump() == text) return json;
  }
  return text;
}

bool is_null_word(const std::string& text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

// --- Strict scalars ---

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Number of digits at the start.
size_t digits(std::string_view text) {
  size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  return count;
}

// Decimal numbers: 12, 1.5, .5, 1., 1e-3. No leading zeros, because they mean octal elsewhere.
bool looks_real(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const size_t whole = digits(text);
  if (whole > 1 && text[0] == '0') return false;
  text.remove_prefix(whole);
  size_t fraction = 0;
  if (!text.empty() && text[0] == '.') {
    fraction = digits(text.substr(1));
    text.remove_prefix(1 + fraction);
  }
  if (whole + fraction == 0) return false;
  if (text.empty()) return true;
  if (text[0] != 'e' && text[0] != 'E') return false;
  text.remove_prefix(1);
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return !text.empty() && digits(text) == text.size();
}

bool not_finite_word(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (!text.empty() && text[0] == '.') text.remove_prefix(1);
  std::string lower;
  for (char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return lower == "nan" || lower == "inf" || lower == "infinity";
}

// Splits "1.5 min" into ("1.5", "min").
std::pair<std::string, std::string> number_and_unit(const std::string& text) {
  size_t end = text.size();
  while (end > 0 && ((text[end - 1] >= 'a' && text[end - 1] <= 'z') || (text[end - 1] >= 'A' && text[end - 1] <= 'Z')))
    --end;
  std::string number = text.substr(0, end);
  while (!number.empty() && number.back() == ' ') number.pop_back();
  return {number, text.substr(end)};
}

// Factor of a unit; 1 without one. `units`: words that mean the same, and their factor.
std::optional<double> factor_of(const std::vector<std::pair<const char*, double>>& units, const std::string& name) {
  if (name.empty()) return 1;
  for (const auto& [words, factor] : units)
    for (const std::string& word : split(words, ' '))
      if (word == name) return factor;
  return std::nullopt;
}

}  // namespace

void SourceLocationWriter::add(const std::string& key, const SourceLocation& location) {
  const auto found = std::find(files_.begin(), files_.end(), location.file);
  const auto index = found - files_.begin();
  if (found == files_.end()) files_.push_back(location.file);
  Json::array_t numbers;
  numbers.reserve(3);
  numbers.emplace_back(index);
  numbers.emplace_back(location.line);
  numbers.emplace_back(location.column);
  // Keys are unique, so append without a search.
  at_.Container::emplace_back(key, std::move(numbers));
}

Json SourceLocationWriter::json() { return {{"files", files_}, {"at", std::move(at_)}}; }

SourceLocations locations_of(const Json& resolved) {
  SourceLocations locations;
  const auto kept = resolved.find("marks");
  if (kept == resolved.end()) return locations;
  const Json& files = kept->at("files");
  for (const auto& entry : kept->at("at").items()) {
    const Json& numbers = entry.value();  // index of the file, line, column
    locations[entry.key()] = {files.at(numbers.at(0).get<size_t>()), numbers.at(1), numbers.at(2)};
  }
  return locations;
}

Node* Node::find(const std::string& key) {
  for (Field& field : fields)
    if (field.key == key) return &field.value;
  return nullptr;
}

const Node* Node::find(const std::string& key) const { return const_cast<Node*>(this)->find(key); }

Node* Node::child(const std::string& key) {
  if (kind == Kind::map) return find(key);
  const auto index = parse_integer(key).value;
  if (kind != Kind::list || !index || *index < 0 || *index >= static_cast<int64_t>(items.size())) return nullptr;
  return &items[static_cast<size_t>(*index)];
}

Node scalar_node(const std::string& text, const SourceLocation& location, bool quoted) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  node.quoted = quoted;
  node.location = location;
  return node;
}

Node map_node(const SourceLocation& location) {
  Node node;
  node.kind = Node::Kind::map;
  node.location = location;
  return node;
}

Json untyped(const Node& node, bool keep_spelling) {
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::scalar:
      return node.quoted ? Json(node.text) : untyped_scalar(node.text, keep_spelling);
    case Node::Kind::list: {
      Json list = Json::array();
      for (const Node& item : node.items) list.push_back(untyped(item, keep_spelling));
      return list;
    }
    case Node::Kind::map:
      break;
  }
  Json map = Json::object();
  for (const Node::Field& field : node.fields) map[field.key] = untyped(field.value, keep_spelling);
  return map;
}

Node node_of(const Json& value, const std::map<std::string, SourceLocation>& locations, const std::string& path) {
  const SourceLocation location = location_of(locations, path);
  const std::string prefix = path.empty() ? "" : path + ".";
  if (value.is_object() && !is_interval(value)) {
    Node map = map_node(location);
    for (const auto& entry : value.items()) {
      const std::string below = prefix + entry.key();
      map.fields.push_back({entry.key(), location_of(locations, below), node_of(entry.value(), locations, below)});
    }
    return map;
  }
  if (value.is_array()) {
    Node list;
    list.kind = Node::Kind::list;
    list.location = location;
    for (size_t i = 0; i < value.size(); ++i) list.items.push_back(node_of(value[i], locations, str(prefix, i)));
    return list;
  }
  if (value.is_null()) {
    Node null;
    null.location = location;
    return null;
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    // Numbers that kept their spelling become plain scalars again; text that would read as another type was quoted.
    const bool quoted = is_null_word(text) || !untyped_scalar(text, true).is_string();
    return scalar_node(text, location, quoted);
  }
  return scalar_node(value.is_object() ? interval_text(value) : value.dump(), location);
}

Parsed<bool> parse_boolean(const std::string& text) {
  if (text == "true") return {true, ""};
  if (text == "false") return {false, ""};
  for (const char* yes : {"yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE", "y", "Y", "1"})
    if (text == yes) return {std::nullopt, "must be true or false; did you mean true?"};
  for (const char* no : {"no", "No", "NO", "off", "Off", "OFF", "False", "FALSE", "n", "N", "0"})
    if (text == no) return {std::nullopt, "must be true or false; did you mean false?"};
  return {std::nullopt, "must be true or false"};
}

Parsed<int64_t> parse_integer(const std::string& text) {
  std::string_view rest = text;
  if (!rest.empty() && rest[0] == '-') rest.remove_prefix(1);
  if (rest.empty() || digits(rest) != rest.size()) {
    if (not_finite_word(text)) return {std::nullopt, "must be an integer"};
    if (looks_real(text)) {
      const auto real = parse_real(text).value;
      if (real && std::fabs(*real) < 1e15 && *real == std::floor(*real)) {
        return {std::nullopt,
                str("must be an integer written in digits; did you mean ", static_cast<int64_t>(*real), "?")};
      }
      return {std::nullopt, "must be a whole number"};
    }
    return {std::nullopt, "must be an integer"};
  }
  if (rest.size() > 1 && rest[0] == '0')
    return {std::nullopt, "must be an integer without leading zeros (octal or decimal?)"};
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return {std::nullopt, "does not fit into 64 bits"};
  return {value, ""};
}

Parsed<double> parse_real(const std::string& text) {
  if (not_finite_word(text)) return {std::nullopt, "must be a finite number"};
  if (!looks_real(text)) return {std::nullopt, "must be a number"};
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  double value = 0;
  const auto result = std::from_chars(begin, text.data() + text.size(), value);
  if (result.ec != std::errc() || !std::isfinite(value)) return {std::nullopt, "does not fit into a 64-bit real"};
  return {value, ""};
}

Parsed<double> parse_duration(const std::string& text) {
  const auto [number, unit] = number_and_unit(text);
  const auto factor = factor_of({{"us", 1e-6},
                                 {"ms", 1e-3},
                                 {"s sec second seconds", 1},
                                 {"m min minute minutes", 60},
                                 {"h hour hours", 3600},
                                 {"d day days", 86400}},
                                unit);
  const auto value = parse_real(number);
  if (!factor || !value.value) {
    if (not_finite_word(text)) return {std::nullopt, "must be a finite duration"};
    return {std::nullopt, "must be a duration such as 90s, 1.5 min or 2h"};
  }
  return {*value.value * *factor, ""};
}

Parsed<int64_t> parse_bytes(const std::string& text) {
  const auto [number, unit] = number_and_unit(text);
  const auto factor = factor_of({{"B", 1},
                                 {"kB KB", 1e3},
                                 {"MB", 1e6},
                                 {"GB", 1e9},
                                 {"TB", 1e12},
                                 {"KiB", 1024.0},
                                 {"MiB", 1048576.0},
                                 {"GiB", 1073741824.0},
                                 {"TiB", 1099511627776.0}},
                                unit);
  const auto value = parse_real(number);
  if (!factor || !value.value) return {std::nullopt, "must be a size such as 512 MiB or 2GB"};
  const double bytes = std::round(*value.value * *factor);
  if (std::fabs(bytes) >= 9.2e18) return {std::nullopt, "does not fit into 64 bits"};
  if (unit.empty()) {
    const auto plain = parse_integer(number);
    if (!plain.value) return {std::nullopt, "must be a size such as 512 MiB, or a whole number of bytes"};
    return plain;
  }
  return {static_cast<int64_t>(bytes), ""};
}

Parsed<Json> parse_interval(const std::string& text) {
  if (text == "never") return {Json{{"every", 0}, {"unit", "never"}}, ""};
  const auto [number, unit] = number_and_unit(text);
  const auto every = parse_integer(number);
  const bool steps = unit == "step" || unit == "steps";
  const bool epochs = unit == "epoch" || unit == "epochs";
  if (!every.value || !(steps || epochs)) {
    if (every.value && unit.empty()) return {std::nullopt, str("needs a unit; did you mean ", number, " steps?")};
    return {std::nullopt, "must be an interval such as 100 steps, 1 epoch or never"};
  }
  if (*every.value < 1) return {std::nullopt, "must be at least 1 step or epoch, or the word never"};
  if (*every.value > most_epochs) return {std::nullopt, str("is beyond ", most_epochs, "; for never, write never")};
  return {Json{{"every", *every.value}, {"unit", steps ? "steps" : "epochs"}}, ""};
}

bool is_interval(const Json& value) {
  if (!value.is_object() || value.size() != 2 || !value.contains("every") || !value.contains("unit")) return false;
  const Json& unit = value["unit"];
  return value["every"].is_number_integer() && (unit == "steps" || unit == "epochs" || unit == "never");
}

std::string interval_text(const Json& interval) {
  const std::string unit = interval["unit"];
  if (unit == "never") return unit;
  const auto every = interval["every"].get<int64_t>();
  return str(every, " ", every == 1 ? unit.substr(0, unit.size() - 1) : unit);
}

}  // namespace convoy
