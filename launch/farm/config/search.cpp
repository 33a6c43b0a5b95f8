// Random search of a farm: the values of its trials.
#include <cmath>
#include <cstdlib>
#include <set>

#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/config/reader.h"
#include "launch/farm/config/farm.h"
#include "launch/text/text_table.h"

namespace convoy {
namespace {

constexpr char search_over[] = "strategy.search.over";
constexpr int most_attempts = 200;  // to find a setting that no earlier trial has

// Uniform in [0, 1). It needs no generator with a state, so each value is independent of all others.
double uniform(int64_t seed, int64_t trial, int attempt, const std::string& key) {
  const std::string text = str(seed, "/", trial, "/", attempt, "/", key);
  constexpr size_t digits = 13;  // 52 bits, as a double has
  const uint64_t bits = std::strtoull(hash_hex(text.data(), text.size()).substr(0, digits).c_str(), nullptr, 16);
  return std::ldexp(static_cast<double>(bits), -52);
}

// The values that a key may have: a list, or a range.
struct SearchedKey {
  std::string key;
  const Node* node = nullptr;                 // list of values, or the range
  const Node *from = nullptr, *to = nullptr;  // bounds of a range; null for a list
  double low = 0, high = 0;
  bool logarithmic = false, whole = false;
};

double bound_of(const Node& range, const char* name, const std::string& path) {
  const Node* node = range.find(name);
  if (node == nullptr) throw ConfigError(range.location, path, "has no `", name, "`; write {from: 1.0e-5, to: 0.1}");
  const auto parsed = node->kind == Node::Kind::scalar ? parse_real(node->text) : Parsed<double>{};
  if (!parsed.value) throw ConfigError(node->location, str(path, ".", name), "must be a number");
  return *parsed.value;
}

bool is_whole(const Node& node) { return parse_integer(node.text).value.has_value(); }

SearchedKey axis_of(const Node::Field& field) {
  const std::string path = str(search_over, ".", field.key);
  SearchedKey axis{field.key, &field.value};
  if (field.value.kind == Node::Kind::list) {
    if (field.value.items.empty()) throw ConfigError(field.value.location, path, "is an empty list; give it a value");
    return axis;
  }
  if (field.value.kind != Node::Kind::map)
    throw ConfigError(field.value.location, path,
                      "must be a list of values, or a range: {from: 1.0e-5, to: 0.1, scale: log}");
  const std::vector<std::string> known{"from", "to", "scale"};
  for (const Node::Field& part : field.value.fields) {
    if (std::find(known.begin(), known.end(), part.key) != known.end()) continue;
    const std::string near = nearest(part.key, known);
    throw ConfigError(part.location, str(path, ".", printable(part.key)), "unknown key; ",
                      near.empty() ? "valid are from, to, scale" : "did you mean " + near + "?");
  }
  axis.low = bound_of(field.value, "from", path);
  axis.high = bound_of(field.value, "to", path);
  axis.from = field.value.find("from");
  axis.to = field.value.find("to");
  axis.whole = is_whole(*axis.from) && is_whole(*axis.to);
  constexpr double exact = 9007199254740992;  // 2^53: doubles hold every integer up to here
  for (const Node* bound : {axis.from, axis.to})
    if (axis.whole && std::fabs(*parse_real(bound->text).value) > exact)
      throw ConfigError(bound->location, path + (bound == axis.from ? ".from" : ".to"), "is ", bound->text,
                        "; integers of a range have at most 53 bits; write a list of values");
  if (axis.low >= axis.high)
    throw ConfigError(axis.to->location, path + ".to", "is ", axis.to->text, ", must be above `from`, ",
                      axis.from->text);
  if (const Node* scale = field.value.find("scale"); scale != nullptr) {
    if (scale->kind != Node::Kind::scalar || (scale->text != "log" && scale->text != "linear"))
      throw ConfigError(scale->location, path + ".scale", "must be log or linear");
    axis.logarithmic = scale->text == "log";
  }
  if (axis.logarithmic && axis.low <= 0)
    throw ConfigError(axis.from->location, path + ".from", "is ", axis.from->text,
                      ", must be above 0 on a logarithmic scale");
  return axis;
}

double between(double low, double high, bool logarithmic, double u) {
  return logarithmic ? std::exp(std::log(low) + u * (std::log(high) - std::log(low))) : low + u * (high - low);
}

std::string whole_text(const SearchedKey& axis, double u) {
  // high + 1, because floor() rounds down: the last integer is as likely as the others. On a logarithmic scale the
  // integer n has the width log((n + 1) / n).
  const double value = between(axis.low, axis.high + 1, axis.logarithmic, u);
  return str(static_cast<int64_t>(std::floor(std::min(std::max(value, axis.low), axis.high))));
}

std::string real_text(const SearchedKey& axis, double u) {
  const double value = between(axis.low, axis.high, axis.logarithmic, u);
  // Rounded, so that names and tables are short and all C libraries give the same text. A narrow range needs more
  // digits.
  const double width = (axis.high - axis.low) / std::max(std::abs(axis.low), std::abs(axis.high));
  const int digits = std::min(15, 4 + static_cast<int>(std::max(0.0, std::ceil(-std::log10(width)))));
  const std::string text = formatted(str("%.", digits, "g").c_str(), value);
  const double rounded = *parse_real(text).value;
  return rounded < axis.low ? axis.from->text : rounded > axis.high ? axis.to->text : text;
}

Node value_of(const SearchedKey& axis, double u) {
  if (axis.from == nullptr) {
    const size_t count = axis.node->items.size();
    return axis.node->items[std::min(count - 1, static_cast<size_t>(u * static_cast<double>(count)))];
  }
  return scalar_node(axis.whole ? whole_text(axis, u) : real_text(axis, u), axis.node->location);
}

int64_t integer_of(const Node& search, const char* name, int64_t fallback) {
  const Node* node = search.find(name);
  return node == nullptr || node->kind != Node::Kind::scalar ? fallback
                                                             : parse_integer(node->text).value.value_or(fallback);
}

}  // namespace

Node sampled_trials(const Node& search) {
  const Node* over = search.find("over");
  if (over == nullptr || over->kind != Node::Kind::map || over->fields.empty())
    throw ConfigError(over == nullptr ? search.location : over->location, search_over,
                      "must be a map from keys to values: {optimizer.lr: {from: 1.0e-5, to: 0.1, scale: log}}");
  std::vector<SearchedKey> axes;
  for (const Node::Field& field : over->fields) axes.push_back(axis_of(field));
  const int64_t seed = integer_of(search, "seed", 1), count = integer_of(search, "random", 0);
  Node trials = map_node(over->location);
  for (const Node::Field& field : over->fields) {
    Node list;
    list.kind = Node::Kind::list;
    list.location = field.value.location;
    trials.fields.push_back({field.key, field.location, std::move(list)});
  }
  std::set<std::string> known;
  for (int64_t trial = 0; trial < count; ++trial) {
    bool fresh = false;
    for (int attempt = 0; attempt < most_attempts && !fresh; ++attempt) {
      std::vector<Node> values;
      std::string setting;
      for (const SearchedKey& axis : axes) {
        values.push_back(value_of(axis, uniform(seed, trial, attempt, axis.key)));
        setting += untyped(values.back(), false).dump() + "\n";
      }
      fresh = known.insert(setting).second;
      for (size_t i = 0; fresh && i < axes.size(); ++i) trials.fields[i].value.items.push_back(std::move(values[i]));
    }
    if (!fresh)
      throw ConfigError(search.location, "strategy.search.random", "is ", count, ", but only ", trial,
                        " settings that differ were found; write fewer trials, or wider ranges, or a grid");
  }
  return trials;
}

}  // namespace convoy
